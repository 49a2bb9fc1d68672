# Many members of managed membership against one coordinator: `make check` runs a few, `make
# check-scale` many; SCALE holds further options.
check_PROGRAMS += tests/scale/scale
tests_scale_scale_SOURCES = tests/scale/main.c tests/scale/run.c tests/scale/load.c \
	tests/scale/conn.c tests/scale/member.c tests/scale/report.c tests/scale/scale.h \
	tests/scale/measure.h
tests_scale_scale_LDADD = src/libftcore.la
TESTS += tests/scale/scale_test.sh
EXTRA_DIST += tests/scale/scale_test.sh
check-scale: tests/scale/scale
	tests/scale/scale --members 1024,8192,32768 --local 8 $(SCALE)
	tests/scale/scale --members 32768,100352 --local 128,1024 $(SCALE)
	tests/scale/scale --members 32768,100352 --local 8 --held --burst $(SCALE)
.PHONY: check-scale
