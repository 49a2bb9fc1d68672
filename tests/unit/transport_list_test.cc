// Property: FTCCL_TRANSPORTS chooses transports in the order in which it names them, each once. An
// empty text chooses all, best first. An unknown name is an error that names it and the known ones.
// The list is never longer than its room. config.netName names one network, by our name or NCCL's.
// Method: texts and their results.
#include <string>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "transport/transport.h"
}

static std::string chosen(const char *text, int capacity = 8)
{
    const ft_transport_ops *out[9] = {};
    int rc = ft_transport_list(text, out, capacity);
    if (rc)
        return "status " + std::to_string(rc);
    std::string s;
    for (int i = 0; out[i]; i++)
        s += (i ? "," : "") + std::string(out[i]->name);
    return s;
}

TEST(TransportList, OrderIsTheUsers)
{
    EXPECT_EQ(chosen("tcp,shm"), "tcp,shm");
    EXPECT_EQ(chosen("shm"), "shm");
    EXPECT_EQ(chosen(" shm, tcp ,,shm"), "shm,tcp") << "spaces, empty names and repetitions";
}

TEST(TransportList, NothingMeansAllBestFirst)
{
    std::string all = chosen("");
    EXPECT_EQ(all.substr(0, 11), "inproc,shm,");
    EXPECT_NE(all.find(",tcp"), std::string::npos) << all;
    EXPECT_EQ(chosen(nullptr), chosen(""));
    EXPECT_EQ(chosen(" ,"), chosen(""));
}

TEST(TransportList, UnknownNamesAreNamed)
{
    ft_fail_clear();
    EXPECT_EQ(chosen("shm,infiniband"), "status " + std::to_string(FT_INVAL));
    std::string why = ft_fail_text();
    EXPECT_NE(why.find("infiniband"), std::string::npos) << why;
    EXPECT_NE(why.find("tcp"), std::string::npos) << why;
    EXPECT_EQ(chosen("sh"), "status " + std::to_string(FT_INVAL)) << "a beginning is not a name";
    EXPECT_EQ(chosen("shmx"), "status " + std::to_string(FT_INVAL));
}

TEST(TransportList, RoomIsChecked)
{
    EXPECT_EQ(chosen("tcp,shm", 2), "status " + std::to_string(FT_INVAL))
        << "two and the end need three places";
    EXPECT_EQ(chosen("tcp,shm", 3), "tcp,shm");
}

TEST(TransportList, OneNetworkOfAll)
{
    char text[64];
    for (const char *name : {"tcp", "Socket", "socket"}) {
        EXPECT_EQ(ft_transport_only_network(name, text, sizeof text), FT_OK) << name;
        EXPECT_STREQ(text, "inproc,shm,tcp") << name;
    }
    for (const char *name : {"shm", "inproc", "TCP", "", "carrier-pigeon"}) {
        EXPECT_EQ(ft_transport_only_network(name, text, sizeof text), FT_INVAL) << name;
        std::string why = ft_fail_text();
        EXPECT_EQ(why.find("config.netName is " + std::string(name) + "; this build has "), 0u);
        EXPECT_NE(why.find("tcp (also called Socket)"), std::string::npos) << why;
    }
    EXPECT_TRUE(ft_transport_is_network("tcp"));
    for (const char *name : {"shm", "inproc", "Socket", ""})
        EXPECT_FALSE(ft_transport_is_network(name)) << name;
}
