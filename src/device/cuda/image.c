/*
 * The kernels as nvcc compiled them: machine code for each architecture that configure was given,
 * and PTX for later ones.
 */
#include "device/cuda/cuda.h"

__asm__(".section .rodata\n"
        ".balign 64\n"
        ".globl ft_cuda_image\n"
        ".hidden ft_cuda_image\n"
        ".type ft_cuda_image, @object\n"
        "ft_cuda_image:\n"
        ".incbin \"src/device/cuda/kernel.fatbin\"\n"
        ".balign 8\n"
        ".quad 0\n"
        ".size ft_cuda_image, . - ft_cuda_image\n"
        ".previous\n");
