#!/bin/sh
# Property: the public header compiles alone as C99 and as C++11 without a warning. Method: the build's compilers.
header=${top_srcdir:-.}/include/ftccl.h
status=0
# shellcheck disable=SC2086 # a compiler may carry options
${CC:-cc} -std=c99 -pedantic -Wall -Wextra -Wstrict-prototypes -Werror -fsyntax-only -x c "$header" || status=1
if command -v ${CXX:-c++} >/dev/null 2>&1; then
    ${CXX:-c++} -std=c++11 -pedantic -Wall -Wextra -Werror -fsyntax-only -x c++ "$header" || status=1
fi
exit $status
