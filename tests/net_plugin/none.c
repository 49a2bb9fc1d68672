/* A library that is no network plugin. */
extern const int ft_test_not_a_plugin;
const int ft_test_not_a_plugin = 1;
