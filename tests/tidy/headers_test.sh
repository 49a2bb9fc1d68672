#!/bin/sh
# Property: each public header compiles alone as C99 and as C++11 without a warning. Method: the
# build's compilers.
status=0
for header in ftccl.h ftccl/nccl.h; do
    header=${top_srcdir:-.}/include/$header
    # shellcheck disable=SC2086 # a compiler may carry options
    ${CC:-cc} -std=c99 -pedantic -Wall -Wextra -Wstrict-prototypes -Werror -fsyntax-only \
        -x c "$header" || status=1
    if command -v ${CXX:-c++} >/dev/null 2>&1; then
        ${CXX:-c++} -std=c++11 -pedantic -Wall -Wextra -Werror -fsyntax-only -x c++ "$header" ||
            status=1
    fi
done
exit $status
