/*
 * The part of the CUDA device that the registry uses, if the device is built. It needs no CUDA
 * header.
 */
#ifndef FT_CUDA_OPEN_H
#define FT_CUDA_OPEN_H

#include "device/device.h"

#ifdef FT_HAVE_CUDA
/* load: load the driver if nobody has loaded it. */
struct ft_device_gpu ft_cuda_of_thread(bool load);
struct ft_device_gpu ft_cuda_numbered(int number);
int ft_cuda_count(void);
/* FT_NOTSUP: there is no driver or no such device */
int ft_cuda_open(struct ft_device_gpu which, struct ft_device **out);
int ft_cuda_alloc(struct ft_device_gpu which, size_t len_bytes, void **out);
void ft_cuda_free(struct ft_device_gpu which, void *ptr);
#endif

#endif
