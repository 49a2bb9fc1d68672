# tests/fuzz
include tests/fuzz/bootstrap.frag
EXTRA_DIST += tests/fuzz/run.sh

# make fuzz FUZZ_SECONDS=600: every fuzzer with libFuzzer and AddressSanitizer (needs clang), in
# build-fuzz/.
fuzz:
	FUZZ_SECONDS='$(FUZZ_SECONDS)' $(SHELL) $(top_srcdir)/tests/fuzz/run.sh
.PHONY: fuzz
include tests/fuzz/telemetry.frag
include tests/fuzz/auth.frag
include tests/fuzz/agree.frag
include tests/fuzz/control.frag
include tests/fuzz/ras.frag
include tests/fuzz/path.frag
include tests/fuzz/managed.frag
