src_libftcore_la_SOURCES += src/algo/algo.h src/algo/parts.h src/algo/choice.h \
	src/algo/select.c src/algo/split.c src/algo/order.c src/algo/tuning.c src/algo/loopback.c \
	src/algo/rules.c src/algo/explain.c src/algo/local.c src/algo/ring.c src/algo/rd.c \
	src/algo/hd.c src/algo/tree.c src/algo/direct.c src/algo/bruck.c src/algo/twolevel.c \
	src/algo/flat.c src/algo/passes.c
