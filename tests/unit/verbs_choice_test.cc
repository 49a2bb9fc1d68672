// Properties: FTCCL_IB_HCA means what NCCL_IB_HCA does; the GID is RoCE v2 of the address family
// asked for, and not link-local; wrong values are answered with what there is; each error has one
// row, which docs/fabrics.md shows. Method: the choices are made from recorded ports and GID
// tables.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

extern "C" {
#include "transport/verbs/verbs.h"
}

namespace
{

verbs_port_seen port(const char *device, unsigned number, bool active = true)
{
    verbs_port_seen p = {};
    snprintf(p.device, sizeof p.device, "%s", device);
    p.number = number;
    p.active = active;
    p.link_layer = IBV_LINK_LAYER_ETHERNET;
    return p;
}
const std::vector<verbs_port_seen> machine = {port("mlx5_0", 1), port("mlx5_1", 1, false),
                                              port("mlx5_10", 1), port("mlx5_10", 2),
                                              port("bnxt_re0", 1)};

std::string chosen(const char *list)
{
    int out[8];
    int n = verbs_hca_choose(list, machine.data(), (int)machine.size(), out, 8);
    if (n < 0)
        return std::to_string(n) + " " + ft_fail_text();
    std::string text;
    for (int i = 0; i < n; i++)
        text += (i ? " " : "") + std::string(machine[(size_t)out[i]].device) + ":" +
                std::to_string(machine[(size_t)out[i]].number);
    return text;
}

TEST(VerbsHca, MeansWhatItMeansForNccl)
{
    EXPECT_EQ(chosen(""), "mlx5_0:1 mlx5_10:1 mlx5_10:2 bnxt_re0:1");
    EXPECT_EQ(chosen("mlx5"), "mlx5_0:1 mlx5_10:1 mlx5_10:2");
    EXPECT_EQ(chosen("mlx5_1"), "mlx5_10:1 mlx5_10:2");
    EXPECT_EQ(chosen("=mlx5_10"), "mlx5_10:1 mlx5_10:2");
    EXPECT_EQ(chosen("=mlx5_10:2"), "mlx5_10:2");
    EXPECT_EQ(chosen("mlx5_1:1,bnxt"), "mlx5_10:1 bnxt_re0:1");
    EXPECT_EQ(chosen("bnxt,mlx5_0"), "bnxt_re0:1 mlx5_0:1") << "a list gives the order";
    EXPECT_EQ(chosen("^mlx5"), "bnxt_re0:1");
    EXPECT_EQ(chosen("^=mlx5_10:1,bnxt_re0"), "mlx5_0:1 mlx5_10:2");
}

TEST(VerbsHca, SaysWhatThereIs)
{
    const std::string there = "there are: mlx5_0:1 (Ethernet, active), "
                              "mlx5_1:1 (Ethernet, not active), mlx5_10:1 (Ethernet, active), "
                              "mlx5_10:2 (Ethernet, active), bnxt_re0:1 (Ethernet, active)";
    EXPECT_EQ(chosen("efa"), "-2 FTCCL_IB_HCA 'efa' leaves no RDMA port; " + there);
    EXPECT_EQ(chosen("^mlx5,bnxt"), "-2 FTCCL_IB_HCA '^mlx5,bnxt' leaves no RDMA port; " + there);
    EXPECT_EQ(chosen("=mlx5_1"),
              "-4 no RDMA port that FTCCL_IB_HCA '=mlx5_1' allows is active; " + there);
    EXPECT_EQ(verbs_hca_choose("", nullptr, 0, nullptr, 0), FT_NOTSUP);
}

// A port of a dual-stack host, as mlx5 shows it.
void add(verbs_gid_table *t, unsigned index, const char *ip, unsigned type)
{
    ibv_gid_entry *e = &t->entry[t->count++];
    memset(e, 0, sizeof *e);
    e->gid_index = index;
    e->gid_type = type;
    if (strchr(ip, ':')) {
        ASSERT_EQ(inet_pton(AF_INET6, ip, e->gid.raw), 1);
    } else {
        e->gid.raw[10] = e->gid.raw[11] = 0xff;
        ASSERT_EQ(inet_pton(AF_INET, ip, e->gid.raw + 12), 1);
    }
}
std::string gid(verbs_options o)
{
    verbs_gid_table t = {};
    t.port = "mlx5_0:1";
    t.link_layer = IBV_LINK_LAYER_ETHERNET;
    t.length = 255;
    add(&t, 0, "fe80::1", IBV_GID_TYPE_ROCE_V1);
    add(&t, 1, "fe80::1", IBV_GID_TYPE_ROCE_V2);
    add(&t, 2, "169.254.3.4", IBV_GID_TYPE_ROCE_V2);
    add(&t, 3, "10.1.0.7", IBV_GID_TYPE_ROCE_V1);
    add(&t, 5, "10.1.0.7", IBV_GID_TYPE_ROCE_V2);
    add(&t, 6, "192.0.2.7", IBV_GID_TYPE_ROCE_V2);
    add(&t, 7, "fd00::7", IBV_GID_TYPE_ROCE_V2);
    const ibv_gid_entry *chosen = nullptr;
    int rc = verbs_gid_choose(&t, &o, &chosen);
    return rc ? std::to_string(rc) + " " + ft_fail_text() : std::to_string(chosen->gid_index);
}
verbs_options options(int index = -1, const char *family = "AF_INET", const char *range = "",
                      unsigned version = 2)
{
    verbs_options o = {};
    o.hca = o.source_ports = "";
    o.gid_index = index;
    o.address_family = family;
    o.address_range = range;
    o.roce_version = version;
    return o;
}

TEST(VerbsGid, IsRoutableIpv4OfRoceV2)
{
    EXPECT_EQ(gid(options()), "5");
    EXPECT_EQ(gid(options(-1, "AF_INET", "192.0.0.0/8")), "6");
    EXPECT_EQ(gid(options(-1, "AF_INET", "192.0.2.6/31")), "6");
    EXPECT_EQ(gid(options(-1, "AF_INET", "169.254.0.0/16")), "2") << "if there is no other";
    EXPECT_EQ(gid(options(-1, "AF_INET6")), "7");
    EXPECT_EQ(gid(options(-1, "AF_INET6", "fe80::/10")), "1");
    EXPECT_EQ(gid(options(-1, "AF_INET", "", 1)), "3");
    EXPECT_EQ(gid(options(3)), "3");
}

TEST(VerbsGid, SaysWhatThereIs)
{
    const std::string there = "0: fe80::1 (RoCE v1), 1: fe80::1 (RoCE v2), "
                              "2: 169.254.3.4 (RoCE v2), 3: 10.1.0.7 (RoCE v1), "
                              "5: 10.1.0.7 (RoCE v2), 6: 192.0.2.7 (RoCE v2), "
                              "7: fd00::7 (RoCE v2)";
    EXPECT_EQ(gid(options(4)), "-2 FTCCL_IB_GID_INDEX is 4, but that entry of the GID table of "
                               "mlx5_0:1 is empty; there are: " +
                                   there);
    EXPECT_EQ(gid(options(255)), "-2 FTCCL_IB_GID_INDEX is 255, but the GID table of mlx5_0:1 has "
                                 "255 entries; there are: " +
                                     there);
    EXPECT_EQ(gid(options(-1, "AF_INET", "203.0.113.0/24")),
              "-4 mlx5_0:1 has no RoCE v2 address of family AF_INET in 203.0.113.0/24; its GID "
              "table: " +
                  there);
    EXPECT_EQ(gid(options(-1, "AF_INET", "203.0.113.0/33")).substr(0, 3), "-2 ");
    EXPECT_EQ(gid(options(-1, "AF_INET", "nonsense")).substr(0, 3), "-2 ");
}

TEST(VerbsSourcePorts, AreTakenInTurn)
{
    EXPECT_EQ(verbs_source_port("", 3), 0);
    EXPECT_EQ(verbs_source_port("50000", 3), 50000);
    EXPECT_EQ(verbs_source_port("50000,50001,60000", 2), 60000);
    EXPECT_EQ(verbs_source_port("50000,50001,60000", 4), 50001);
    EXPECT_EQ(verbs_source_port("50000,80", 1), 0);
}

std::string row(const verbs_error *e)
{
    return std::string("| ") + e->name + " | " + verbs_lost_name(e->lost) + " | " +
           (e->lost == VERBS_LOST_NOTHING ? ""
            : e->recoverable              ? "yes"
                                          : "no") +
           " | " + e->reason + " |";
}

TEST(VerbsErrors, EachHasARowThatTheDocumentShows)
{
    const char *top = getenv("top_srcdir");
    std::ifstream file(std::string(top ? top : ".") + "/docs/fabrics.md");
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    ASSERT_FALSE(text.empty());
    for (unsigned i = 0; i <= IBV_WC_TM_RNDV_INCOMPLETE; i++) {
        const verbs_error *e = verbs_completion_error(i);
        ASSERT_TRUE(e->name && e->reason) << i;
        EXPECT_NE(text.find(row(e)), std::string::npos) << row(e);
        EXPECT_EQ(verbs_error_status(e) == FT_OK, i == IBV_WC_SUCCESS) << e->name;
    }
    for (unsigned i = 0; i <= IBV_EVENT_WQ_FATAL; i++) {
        const verbs_error *e = verbs_event_error(i);
        ASSERT_TRUE(e->name && e->reason) << i;
        EXPECT_NE(text.find(row(e)), std::string::npos) << row(e);
    }
    EXPECT_STREQ(verbs_completion_error(9999)->name, "UNKNOWN");
    EXPECT_EQ(verbs_error_status(verbs_completion_error(9999)), FT_LINK);
    EXPECT_STREQ(verbs_event_error(9999)->name, "UNKNOWN");
}

} // namespace
