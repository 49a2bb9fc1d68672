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
