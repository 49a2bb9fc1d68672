/*
 * Status words in pinned memory. They tell the user's kernels whether a communicator has failed.
 * Such a kernel may run after the communicator's end, so pages stay for the life of the process.
 * Only a word that is still 0 is reused.
 */
#include "device/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES 4096
#define PAGE_WORDS (PAGE_BYTES / sizeof(uint32_t))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ft_cuda_word *unused;

/* Adds a page of words. Entered. */
static int make_page(const struct ft_cuda_driver *driver)
{
    void *here;
    CUdeviceptr dev_ptr;
    struct ft_cuda_word *words = calloc(PAGE_WORDS, sizeof *words);
    if (!words)
        return ft_fail(FT_NOMEM, "no memory for status words");
    int rc = ft_cuda_map(driver, PAGE_BYTES, &here, &dev_ptr);
    if (rc != FT_OK) {
        free(words);
        return rc;
    }
    memset(here, 0, PAGE_BYTES);
    for (size_t i = 0; i < PAGE_WORDS; i++) {
        words[i] = (struct ft_cuda_word){unused, (uint32_t *)here + i,
                                         dev_ptr + i * sizeof(uint32_t)};
        unused = &words[i];
    }
    return FT_OK;
}

int ft_cuda_word(struct ft_device_queue *queue, uint32_t **here, const uint32_t **dev_ptr)
{
    int rc = queue->word ? FT_OK : ft_cuda_enter(queue->cuda);
    if (rc == FT_OK && !queue->word) {
        pthread_mutex_lock(&lock);
        if (!unused)
            rc = make_page(queue->cuda->driver);
        if (rc == FT_OK) {
            queue->word = unused;
            unused = unused->next;
        }
        pthread_mutex_unlock(&lock);
        ft_cuda_leave(queue->cuda);
    }
    if (rc != FT_OK)
        return rc;
    *here = queue->word->here;
    *dev_ptr = (const uint32_t *)(uintptr_t)queue->word->dev_ptr;
    return FT_OK;
}

void ft_cuda_word_close(struct ft_device_queue *queue)
{
    struct ft_cuda_word *word = queue->word;
    queue->word = NULL;
    if (!word || __atomic_load_n(word->here, __ATOMIC_RELAXED) != 0)
        return;
    pthread_mutex_lock(&lock);
    word->next = unused;
    unused = word;
    pthread_mutex_unlock(&lock);
}
