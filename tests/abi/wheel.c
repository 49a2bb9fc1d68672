/* For loading_test.sh: a stand-in for the library of a wheel (WHEEL), or for a framework that needs
 * one. */
#ifdef WHEEL
struct team {
    int nRanks, rank, stride;
};
int ncclGetVersion(int *version);
int ncclGetVersion(int *version)
{
    *version = 20101;
    return 0;
}
/* Ours has this name too, and uses it. */
struct team pncclTeamWorld(void *comm);
struct team pncclTeamWorld(void *comm)
{
    return (struct team){comm ? -1 : -2, -1, -1};
}
#else
int ncclGetVersion(int *version);
int framework_version(void);
int framework_version(void)
{
    int version = 0;
    return ncclGetVersion(&version) == 0 ? version : -1;
}
#endif
