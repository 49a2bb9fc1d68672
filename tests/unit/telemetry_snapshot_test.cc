/*
 * Property: a snapshot has what the telemetry files of a directory tell, wherever it is. Method:
 * files of this process in short and in long paths.
 */
#include "telemetry_fixture.h"

#include <climits>
#include <fcntl.h>

extern "C" {
#include "diagnose/diagnose.h"
}

namespace
{

class Snapshot : public Telemetry
{
  protected:
    using Taken = std::unique_ptr<ft_snapshot, void (*)(ft_snapshot *)>;
    static Taken collect(const std::string &from)
    {
        struct ft_snapshot *s = nullptr;
        EXPECT_EQ(ft_snapshot_collect(from.c_str(), &s), FT_OK) << ft_fail_text();
        return Taken(s, ft_snapshot_free);
    }
};

/* A directory whose path has so many characters, made level by level. */
std::string make_deep(const std::string &top, size_t len)
{
    std::string path = top;
    int at = open(top.c_str(), O_RDONLY | O_DIRECTORY);
    while (path.size() < len) {
        size_t more = std::min(len - path.size(), size_t(200));
        std::string name(more > 1 ? more - 1 : 1, 'x');
        EXPECT_EQ(mkdirat(at, name.c_str(), 0700), 0) << strerror(errno);
        int next = openat(at, name.c_str(), O_RDONLY | O_DIRECTORY);
        close(at);
        at = next;
        path += "/" + name;
    }
    close(at);
    return path;
}

/* One that fits into PATH_MAX is read; of one that does not fit, the file is missing, and this is
 * known. */
TEST_F(Snapshot, LongPaths)
{
    for (auto [len, engines, unreadable] : {std::tuple{400, 1, 0}, {PATH_MAX - 10, 0, 1}}) {
        std::string deep = make_deep(dir, size_t(len));
        struct ft_telemetry *t = open();
        std::string name = files().at(files().at(0)[0] == 'x');
        int to = ::open(deep.c_str(), O_RDONLY | O_DIRECTORY);
        ASSERT_EQ(renameat(AT_FDCWD, (dir + "/" + name).c_str(), to, name.c_str()), 0);
        close(to);
        Taken s = collect(deep);
        ASSERT_TRUE(s);
        EXPECT_EQ(s->nengines, engines) << len;
        EXPECT_EQ(s->unreadable, unreadable) << len;
        ft_telemetry_close(t);
        EXPECT_EQ(system(("rm -r " + dir + "/x*").c_str()), 0);
    }
}

} // namespace
