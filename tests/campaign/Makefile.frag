# The fault campaign: `make check` and `make check-campaign-slice` run it for some minutes, `make
# check-campaign` in full.
campaign_program = tests/campaign/campaign
check_PROGRAMS += $(campaign_program)
tests_campaign_campaign_SOURCES = tests/campaign/campaign.cc tests/campaign/events.cc \
	tests/campaign/events.h tests/campaign/job.cc tests/campaign/job.h tests/campaign/net.cc \
	tests/campaign/net.h tests/campaign/worker.cc tests/campaign/calls.cc \
	tests/campaign/campaign.h
tests_campaign_campaign_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)
tests_campaign_campaign_LDADD = src/libftccl.la
TESTS += tests/campaign/campaign_test.sh
SLOW_TESTS += tests/campaign/campaign_test.sh
EXTRA_DIST += tests/campaign/campaign_test.sh

FT_CAMPAIGN_EVENTS = 2000
check-campaign-slice: $(campaign_program)
	top_builddir=. $(SHELL) $(srcdir)/tests/campaign/campaign_test.sh
check-campaign: $(campaign_program)
	tests/campaign/campaign --events $(FT_CAMPAIGN_EVENTS) --large 8589934592
.PHONY: check-campaign check-campaign-slice
