/* For loading_test.sh: stands for the library of a wheel (WHEEL), and for a framework that needs one (else). */
int ncclGetVersion(int *version);
#ifdef WHEEL
int ncclGetVersion(int *version) { *version = 20101; return 0; }
#else
int framework_version(void);
int framework_version(void)
{
    int version = 0;
    return ncclGetVersion(&version) == 0 ? version : -1;
}
#endif
