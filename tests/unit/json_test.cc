/*
 * Property: what the JSON writer writes is what was given, whatever bytes and numbers come, in any
 * locale, and it stops at its limit. Method: values at the edges, compared with the text that they
 * must become.
 */
#include <clocale>
#include <cmath>

extern "C" {
#include "base/base.h"
}

namespace
{

class Json : public testing::Test
{
  protected:
    ft_text out_ = {};
    void SetUp() override
    {
        out_.most = 1 << 16;
    }
    void TearDown() override
    {
        ft_text_free(&out_);
    }
    std::string text() const
    {
        return out_.at ? out_.at : "";
    }
    std::string real(double value)
    {
        ft_text_free(&out_);
        ft_json_real(&out_, nullptr, value);
        return text();
    }
};

TEST_F(Json, CommasAndBrackets)
{
    ft_json_begin(&out_, nullptr, '{');
    ft_json_begin(&out_, "a", '[');
    ft_json_int(&out_, nullptr, 1);
    ft_json_begin(&out_, nullptr, '{');
    ft_json_end(&out_, '}');
    ft_json_null(&out_, nullptr);
    ft_json_end(&out_, ']');
    ft_json_bool(&out_, "b", true);
    ft_json_string(&out_, "c[", "{");
    ft_json_int(&out_, "d", INT64_MIN);
    ft_json_end(&out_, '}');
    EXPECT_EQ(text(), "{\"a\":[1,{},null],\"b\":true,\"c[\":\"{\",\"d\":-9223372036854775808}");
}

TEST_F(Json, AnyBytes)
{
    ft_json_string(&out_, nullptr, "a\"\\\n\x01\x7f\xff/");
    EXPECT_EQ(text(), "\"a\\u0022\\u005c\\u000a\\u0001\\u007f\\u00ff/\"");
}

TEST_F(Json, RealNumbers)
{
    EXPECT_EQ(real(0), "0.0");
    EXPECT_EQ(real(5), "5.0");
    EXPECT_EQ(real(-0.25), "-0.25");
    EXPECT_EQ(real(-1e-9), "0.0");
    EXPECT_EQ(real(0.9999999), "1.0");
    EXPECT_EQ(real(1795466243.839942), "1795466243.839942");
    EXPECT_EQ(real(NAN), "0.0");
    EXPECT_EQ(real(INFINITY), "0.0");
    for (const char *locale : {"de_DE.UTF-8", "fr_FR.UTF-8"})
        setlocale(LC_ALL, locale);
    EXPECT_EQ(real(0.5), "0.5");
    setlocale(LC_ALL, "C");
}

TEST_F(Json, StopsAtItsLimit)
{
    out_.most = 1000;
    for (int i = 0; i < 1000; i++)
        ft_json_int(&out_, nullptr, 7);
    EXPECT_TRUE(out_.broken);
    EXPECT_LT(out_.len, 1000u);
    EXPECT_EQ(text().size(), out_.len);
}

} // namespace
