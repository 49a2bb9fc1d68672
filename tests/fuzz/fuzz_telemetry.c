/*
 * Property: no bytes in a telemetry file make its reader crash, hang, or print control characters
 * or without bound. Method: a good file with pieces overwritten. An input describes them: a mode
 * byte, then pieces of (offset, 3 bytes; length, 1 byte; the bytes). With mode 0, the rest is the
 * whole file. libFuzzer (-fsanitize=fuzzer -DFT_LIBFUZZER) mutates the inputs. Without it, inputs
 * come from a seed: fuzz_telemetry [RUNS [SEED]] (FT_FUZZ_SECONDS: as many as fit into that time);
 * fuzz_telemetry FILE... replays.
 */
#include "telemetry/format.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);
static unsigned long printed, refused;

static void complain(const char *what)
{
    fprintf(stderr, "fuzz_telemetry: %s\n", what);
    abort();
}

static struct ft_tm_file *good_file(void)
{
    static struct ft_tm_file file, *made;
    if (made)
        return made;
    struct ft_telemetry *t = ft_telemetry_open_in("/dev/shm", ft_env_real(), 1, 2);
    if (!t)
        complain("no telemetry file could be made");
    const struct ft_coll coll = {
        .kind = FT_ALLREDUCE, .type = FT_FLOAT32, .red = FT_SUM, .root = -1, .count = 7};
    int comm = ft_telemetry_comm_open(t, 5, 1, 4, 2, "fuzz");
    for (uint64_t seq = 1; seq < 20; seq++) {
        uint32_t op = ft_telemetry_op(t, comm, seq, &coll, "ring", (struct ft_op_times){0, seq});
        ft_telemetry_op_state(t, op, seq < 15 ? FT_OP_DONE : FT_OP_RUNNING, FT_OK, seq + 1);
    }
    ft_telemetry_link_open(t, 3, 1, "shm", true);
    FILE *in = fopen(ft_telemetry_path(t), "rbe");
    if (!in || fread(&file, sizeof file, 1, in) != 1)
        complain("the file cannot be read");
    fclose(in);
    ft_telemetry_close(t);
    return made = &file;
}

static void patch(struct ft_tm_file *file, const uint8_t *data, size_t len_bytes)
{
    while (len_bytes > 4) {
        size_t at = ((size_t)data[0] << 16 | (size_t)data[1] << 8 | data[2]) % sizeof *file;
        size_t n = ft_min(ft_min(data[3], len_bytes - 4), sizeof *file - at);
        memcpy((char *)file + at, data + 4, n);
        data += 4 + n;
        len_bytes -= 4 + n;
    }
}

static void check_text(const struct ft_image *image)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    if (!out)
        return;
    ft_image_print(out, image, 1000);
    fclose(out);
    for (size_t i = 0; i < len; i++)
        if (text[i] != '\n' && (text[i] < ' ' || text[i] > '~'))
            complain("a control character was printed");
    if (len > 2u << 20)
        complain("more than 2 MiB were printed");
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
    struct ft_image *image = NULL;
    if (len_bytes == 0)
        return 0;
    int status;
    if (data[0] == 0) {
        status = ft_image_parse(data + 1, len_bytes - 1, &image);
    } else {
        struct ft_tm_file *file = malloc(sizeof *file);
        if (!file)
            return 0;
        *file = *good_file();
        patch(file, data + 1, len_bytes - 1);
        status = ft_image_parse(file, sizeof *file, &image);
        free(file);
    }
    status == FT_OK ? printed++ : refused++;
    if (status == FT_OK)
        check_text(image);
    else if (image)
        complain("an image was given although the file was refused");
    ft_image_free(image);
    return 0;
}

#ifndef FT_LIBFUZZER
#include <time.h>

static uint64_t next(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* A few pieces, aimed where the meaning is: the header, rows in use, the strings. */
static size_t make_input(uint64_t *state, uint8_t *buf, size_t capacity)
{
    static const size_t area[] = {0, offsetof(struct ft_tm_file, comm),
                                  offsetof(struct ft_tm_file, op),
                                  offsetof(struct ft_tm_file, link)};
    size_t len = 0, pieces = 1 + next(state) % 24;
    buf[len++] = (uint8_t)(next(state) % 16);
    for (size_t i = 0; i < pieces && len + 4 + 32 < capacity; i++) {
        size_t which = next(state) % 16;
        size_t at = which == 0
                        ? next(state) % sizeof(struct ft_tm_file)
                        : area[which % 4] +
                              next(state) % (which % 4 == 0 ? 16 + 240 * (next(state) % 2) : 2560);
        size_t n = 1 + next(state) % 32;
        buf[len++] = (uint8_t)(at >> 16), buf[len++] = (uint8_t)(at >> 8), buf[len++] = (uint8_t)at,
        buf[len++] = (uint8_t)n;
        for (size_t k = 0; k < n; k++)
            buf[len++] = (uint8_t)(which % 3 ? next(state) : 0xff);
    }
    return len;
}

static int replay(const char *path)
{
    FILE *in = fopen(path, "rbe");
    static uint8_t data[2 << 20];
    size_t len = in ? fread(data, 1, sizeof data, in) : 0;
    if (!in)
        return 0;
    fclose(in);
    LLVMFuzzerTestOneInput(data, len);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc > 1 && replay(argv[1])) {
        for (int i = 2; i < argc; i++)
            replay(argv[i]);
        return 0;
    }
    const char *seconds = getenv("FT_FUZZ_SECONDS"), *given = getenv("FT_SEED");
    unsigned long runs = argc > 1 ? strtoul(argv[1], NULL, 10) : seconds ? ULONG_MAX : 400;
    time_t end = time(NULL) + (seconds && argc == 1 ? strtol(seconds, NULL, 10) : 3600);
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0)
                    : given  ? strtoull(given, NULL, 0)
                             : (uint64_t)time(NULL);
    fprintf(stderr, "replay: fuzz_telemetry %lu %llu\n", runs, (unsigned long long)seed);
    for (unsigned long run = 0; run < runs && time(NULL) < end; run++) {
        uint8_t buf[1024];
        size_t len = make_input(&seed, buf, sizeof buf);
        LLVMFuzzerTestOneInput(buf, len);
    }
    fprintf(stderr, "%lu files were printed, %lu refused\n", printed, refused);
    return 0;
}
#endif
