/*
 * The nccl.h against which a test is compiled: ours if FT_OWN_NCCL_H is set, else NVIDIA's.
 * FT_NCCL_INTERFACE is the version of its declarations. FT_NO_NCCL_HEADER is set if there is none,
 * and says why.
 */
#ifndef FT_TESTS_NCCL_HEADER_H
#define FT_TESTS_NCCL_HEADER_H

#if defined(FT_OWN_NCCL_H)
#include <ftccl/nccl.h>
#define FT_NCCL_INTERFACE FTCCL_NCCL_INTERFACE
#elif defined(FT_HAVE_NCCL_H)
#include <nccl.h>
#define FT_NCCL_INTERFACE NCCL_VERSION_CODE
#ifdef FTCCL_NCCL_INTERFACE
#error "this is FTCCL's own nccl.h, which must not shadow NVIDIA's"
#endif
#else
#define FT_NO_NCCL_HEADER \
    "no nccl.h and cuda.h of NVIDIA's: configure --with-cuda=DIR and --with-nccl=DIR name them"
#endif

#endif
