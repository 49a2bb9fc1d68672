# tests/net_plugin: transport net, over plugins of our own
net_plugin_ldflags = $(AM_LDFLAGS) -rpath /nowhere -module -avoid-version -shared
check_LTLIBRARIES += tests/net_plugin/libnccl-net-ft8.la tests/net_plugin/libnccl-net-ft11.la \
	tests/net_plugin/libnccl-net-ft12.la tests/net_plugin/libnccl-net-ft0.la
tests_net_plugin_libnccl_net_ft8_la_SOURCES = tests/net_plugin/plugin.c
tests_net_plugin_libnccl_net_ft8_la_CPPFLAGS = $(AM_CPPFLAGS) -DPLUGIN_VERSION=8
tests_net_plugin_libnccl_net_ft8_la_LDFLAGS = $(net_plugin_ldflags)
tests_net_plugin_libnccl_net_ft11_la_SOURCES = tests/net_plugin/plugin.c
tests_net_plugin_libnccl_net_ft11_la_CPPFLAGS = $(AM_CPPFLAGS) -DPLUGIN_VERSION=11
tests_net_plugin_libnccl_net_ft11_la_LDFLAGS = $(net_plugin_ldflags)
tests_net_plugin_libnccl_net_ft12_la_SOURCES = tests/net_plugin/plugin.c
tests_net_plugin_libnccl_net_ft12_la_CPPFLAGS = $(AM_CPPFLAGS) -DPLUGIN_VERSION=12
tests_net_plugin_libnccl_net_ft12_la_LDFLAGS = $(net_plugin_ldflags)
# has no symbol of a plugin
tests_net_plugin_libnccl_net_ft0_la_SOURCES = tests/net_plugin/none.c
tests_net_plugin_libnccl_net_ft0_la_LDFLAGS = $(net_plugin_ldflags)
if HAVE_GTEST
check_PROGRAMS += tests/net_plugin/plugin_test
tests_net_plugin_plugin_test_SOURCES = tests/net_plugin/plugin_test.cc
tests_net_plugin_plugin_test_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir) \
	-DFT_TEST_PLUGINS='"$(abs_top_builddir)/tests/net_plugin/.libs"'
tests_net_plugin_plugin_test_LDADD = $(proc_ldadd)
TESTS += tests/net_plugin/plugin_test
endif
# Not a test: prints what a link costs over the plugin's own calls.
if HAVE_GTEST
check_PROGRAMS += tests/net_plugin/rate
tests_net_plugin_rate_SOURCES = tests/net_plugin/rate.cc
tests_net_plugin_rate_CPPFLAGS = $(gtest_cppflags) -I$(top_srcdir)
tests_net_plugin_rate_LDADD = tests/conform/libtransport.la src/libftcore.la $(GTEST_LIBS) -lpthread
endif
