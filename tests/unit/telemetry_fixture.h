/* What the telemetry tests share: a private directory, an environment with a clock that can be set,
 * and the text of a reader's output. */
#ifndef TELEMETRY_FIXTURE_H
#define TELEMETRY_FIXTURE_H

#include <gtest/gtest.h>

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

extern "C" {
#include "telemetry/format.h"
}

class Telemetry : public ::testing::Test
{
  protected:
    std::string dir;
    static inline uint64_t clock_ns = 1000;
    struct ft_env env = {[](struct ft_env *) { return clock_ns; }, nullptr, nullptr};

    void SetUp() override
    {
        char text[] = "/dev/shm/telemetry-test-XXXXXX";
        ASSERT_NE(mkdtemp(text), nullptr);
        dir = text;
    }
    void TearDown() override
    {
        for (const std::string &name : files())
            unlink((dir + "/" + name).c_str());
        rmdir(dir.c_str());
    }
    std::vector<std::string> files() const
    {
        std::vector<std::string> names;
        DIR *list = opendir(dir.c_str());
        while (struct dirent *entry = list ? readdir(list) : nullptr)
            if (entry->d_name[0] != '.')
                names.push_back(entry->d_name);
        if (list)
            closedir(list);
        return names;
    }
    struct ft_telemetry *open()
    {
        return ft_telemetry_open_in(dir.c_str(), &env, 0xabc, 0xdef);
    }

    using Image = std::unique_ptr<ft_image, void (*)(ft_image *)>;
    static Image load(const std::string &path)
    {
        struct ft_image *image = nullptr;
        int status = ft_image_load(path.c_str(), &image);
        EXPECT_EQ(status, FT_OK) << ft_fail_text();
        return Image(image, ft_image_free);
    }
    static std::string text(const ft_image *image)
    {
        char *buf = nullptr;
        size_t len = 0;
        FILE *out = open_memstream(&buf, &len);
        ft_image_print(out, image, 5000000000u);
        fclose(out);
        std::string s(buf, len);
        free(buf);
        return s;
    }
    static struct ft_coll coll(size_t count)
    {
        struct ft_coll c = {};
        c.kind = FT_ALLREDUCE, c.type = FT_FLOAT32, c.red = FT_SUM, c.root = -1, c.count = count;
        return c;
    }
};

#endif
