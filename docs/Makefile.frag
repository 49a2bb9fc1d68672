# Manual pages and documents.
dist_man_MANS += man/ftccl.3 man/ftccl.7 man/ftccl-info.1 man/ftccl-run.1 \
	man/ftccl-diagnose.1 man/ncclras.1 man/ftccl-top.1 \
	man/ftccl-agent.1 man/ftccld.1 man/ftccl-path.1
EXTRA_DIST += docs/architecture.md docs/dependencies.md docs/status.md docs/status.json \
    scripts/status scripts/demo scripts/test scripts/test-times scripts/count-tests \
	scripts/packages.sh scripts/timeline .ci/run
EXTRA_DIST += docs/telemetry-format.md docs/wire-protocol.md docs/diagnosis.md scripts/gen-man-params
EXTRA_DIST += docs/device-host.md docs/device-cuda.md
EXTRA_DIST += docs/algorithms.md docs/glossary.md docs/membership.md docs/managed.md
EXTRA_DIST += docs/decisions
EXTRA_DIST += docs/fault-tolerance.md docs/nccl-compatibility.md
EXTRA_DIST += docs/performance.md docs/fabrics.md
