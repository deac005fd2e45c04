# The project's commands; `make` alone lists them. Each sets up what it needs, so a fresh clone
# starts with any of them, and a second run skips the setting up.

PYTHON ?= python3
# Processes that share the tests on the tree, more than there are processors, for many tests wait (a
# run on the wheel has a quarter of them, or an eighth); and the Pythons that the wheel is tested on.
JOBS ?= 8
WHEEL_PYTHONS ?= 3.12 3.13 3.14 3.14t
# The stores that are tested, with commas: redis, sqlite, postgres, mysql, etcd. All, if not given.
STORES ?=
# Passed on to what the command runs: make test ARGS="-k cancel".
ARGS ?=

# `make demo` with a server and a size of your own; a variable of make may be written either way.
DEMO_URL = $(or $(URL),$(url))
DEMO_WORKERS = $(or $(WORKERS),$(workers))
DEMO = $(if $(DEMO_URL),--url "$(DEMO_URL)") \
	$(if $(DEMO_WORKERS),--workers "$(DEMO_WORKERS)") $(ARGS)
OF_STORES = $(if $(STORES),--stores "$(STORES)")
SERVERS = redis-server chromium promtool $(if $(STORES),$(if $(findstring postgres,$(STORES)),postgresql) \
	$(if $(findstring mysql,$(STORES)),mariadb),postgresql mariadb)
SOURCES = $(wildcard aiolock pytest_aiolock tests examples benchmarks)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export NO_MKDOCS_2_WARNING := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# The tests start some thousand Pythons: where what is compiled may not be written down, half of
# their time goes into compiling it again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test proof chaos lint bench docs clean distclean redis-server postgresql mariadb chromium promtool

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: .venv/package.stamp ## see it work: make demo [URL=redis://...] [WORKERS=4]
	@.venv/bin/python -m aiolock demo $(DEMO)

test: .venv/dev.stamp $(SERVERS) ## what a contributor runs: make test [STORES=redis,sqlite] [ARGS="-k cancel"]
	@.ci/in-memory .ci/test "$(JOBS)" --dist worksteal $(OF_STORES) $(ARGS)

# On the tree on asyncio's own loop; on the wheel on uvloop, and with eager tasks.
proof: .venv/dev.stamp $(SERVERS) ## the rest: models, chaos, ablations, whole programs, bounds, the built wheel; see tests/proof/README.md
	@.ci/in-memory .ci/proof "$(WHEEL_PYTHONS)" "$(JOBS)" --dist worksteal $(OF_STORES) $(ARGS)

chaos: .venv/dev.stamp redis-server postgresql mariadb ## break everything for a while: make chaos [STORE=redis] [SECONDS=60] [SEED=1]
	@.venv/bin/python -m tests.proof.chaos --store "$(or $(STORE),redis)" --seconds "$(or $(SECONDS),60)" --seed "$(or $(SEED),1)" $(ARGS)

lint: .venv/dev.stamp ## ruff, mypy and pyright, all strict
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy $(SOURCES)
	.venv/bin/pyright

bench: .venv/dev.stamp redis-server ## measure, beside the alternatives: make bench [QUICK=1]
	.venv/bin/python benchmarks/run.py $(if $(QUICK),--quick) $(ARGS)

docs: .venv-docs/docs.stamp ## the documentation, into site/
	.venv-docs/bin/mkdocs build --quiet --strict

clean: ## remove what was built; the environments stay
	rm -rf build dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find $(SOURCES) -name __pycache__ -exec rm -rf {} +

distclean: clean ## the environments too: back to a fresh clone
	rm -rf .venv .venv-bench .venv-docs .venv-wheel-*

redis-server:
	@command -v "$${REDIS_SERVER:-$@}" >/dev/null \
		|| .ci/install-package apt-get:redis-server dnf:redis apk:redis brew:redis \
		|| { echo "$@ is missing and we may not install it here: please install the package redis-server (or redis)." >&2; exit 1; }

# Not on PATH where Debian has it. The tests say which of them had to go without.
postgresql:
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 \
		|| .ci/install-package apt-get:postgresql dnf:postgresql-server apk:postgresql brew:postgresql \
		|| echo "PostgreSQL is missing and we may not install it here: the store goes untested." >&2
	@command -v pgbouncer >/dev/null || ls /usr/sbin/pgbouncer >/dev/null 2>&1 \
		|| .ci/install-package apt-get:pgbouncer dnf:pgbouncer apk:pgbouncer brew:pgbouncer \
		|| echo "PgBouncer is missing and we may not install it here: it goes untested." >&2

mariadb:
	@command -v mariadbd >/dev/null || ls /usr/sbin/mariadbd >/dev/null 2>&1 \
		|| .ci/install-package apt-get:mariadb-server dnf:mariadb-server apk:mariadb brew:mariadb \
		|| echo "MariaDB is missing and we may not install it here: the store goes untested." >&2

# For the tests of the page.
chromium:
	@command -v chromedriver >/dev/null \
		|| { .ci/install-package apt-get:chromium dnf:chromium apk:chromium \
			&& .ci/install-package apt-get:chromium-driver dnf:chromedriver apk:chromium-chromedriver; } \
		|| echo "Chromium is missing and we may not install it here: the page goes untested in a browser." >&2

# For the tests of the rules and the dashboard in examples/monitoring. It comes with Prometheus.
promtool:
	@command -v $@ >/dev/null \
		|| .ci/install-package apt-get:prometheus dnf:golang-github-prometheus apk:prometheus brew:prometheus \
		|| echo "promtool is missing and we may not install it here: the alert rules go untested." >&2

# One environment in two layers: the package is enough for the demo, the rest wants the tools.
.venv/package.stamp: pyproject.toml
	@.ci/venv .venv $(PYTHON)
	@.venv/bin/python -m pip install -qq --editable .
	@touch $@

.venv/dev.stamp: .venv/package.stamp
	@.venv/bin/python -m pip install -qq --group dev
	@.venv/bin/python -m pip install -qq --no-deps --group arq
	@touch $@

.venv-docs/docs.stamp: pyproject.toml
	@.ci/venv .venv-docs $(PYTHON)
	@.venv-docs/bin/python -m pip install -qq --group docs
	@touch $@
