/*
 * What the registry knows of the CUDA device, where it is built; needs no header of CUDA's.
 */
#ifndef FT_CUDA_OPEN_H
#define FT_CUDA_OPEN_H

#include "device/device.h"

#ifdef FT_HAVE_CUDA
/* The calling thread's context; NULL: none. load: the driver is loaded if nobody has. */
void *ft_cuda_context(bool load);
/* NULL: the primary context of device 0. FT_NOTSUP: there is no driver, or no device. */
int ft_cuda_open(void *context, struct ft_device **out);
#endif

#endif
