# The fault campaign: `make check` and `make check-campaign-slice` run it for some minutes, `make
# check-campaign` in full.
campaign_program = tests/campaign/campaign
check_PROGRAMS += $(campaign_program)
tests_campaign_campaign_SOURCES = tests/campaign/campaign.cc tests/campaign/events.cc \
	tests/campaign/events.h tests/campaign/job.cc tests/campaign/job.h tests/campaign/net.cc \
	tests/campaign/net.h tests/campaign/worker.cc tests/campaign/calls.cc \
	tests/campaign/campaign.h tests/proc/shm.cc tests/proc/shm.h
tests_campaign_campaign_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) \
	-DFT_TEST_PLUGIN='"$(abs_top_builddir)/tests/net_plugin/.libs/libnccl-net-ft12.so"'
tests_campaign_campaign_LDADD = src/libftccl.la
tests_campaign_campaign_DEPENDENCIES = src/libftccl.la tests/net_plugin/libnccl-net-ft12.la
campaign_tests = tests/campaign/campaign_test.sh tests/campaign/ofi_test.sh \
	tests/campaign/net_test.sh
TESTS += $(campaign_tests)
SLOW_TESTS += $(campaign_tests)
EXTRA_DIST += $(campaign_tests)

FT_CAMPAIGN_EVENTS = 2000
FT_CAMPAIGN_NETWORK_EVENTS = 600
if HAVE_LIBFABRIC
campaign_networks = net,ofi
else
campaign_networks = net
endif
check-campaign-slice: $(campaign_program)
	top_builddir=. $(SHELL) $(srcdir)/tests/campaign/campaign_test.sh
check-campaign: $(campaign_program)
	tests/campaign/campaign --events $(FT_CAMPAIGN_EVENTS) --large 8589934592
	tests/campaign/campaign --over $(campaign_networks) --events $(FT_CAMPAIGN_NETWORK_EVENTS)
.PHONY: check-campaign check-campaign-slice
