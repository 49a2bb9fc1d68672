# ncclras asks the responder of a host; it goes without the library.
bin_PROGRAMS += tools/ncclras
tools_ncclras_SOURCES = tools/ncclras.c
