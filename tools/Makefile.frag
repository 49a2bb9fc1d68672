# tools
include tools/run.frag
include tools/info.frag
include tools/diagnose.frag
include tools/top.frag
include tools/ncclras.frag
include tools/path.frag
include tools/daemons.frag
