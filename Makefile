# idempotency: exactly-once effects for PostgreSQL
#
#   make                 build the library, the install script and the sink programs
#   make install         install into the server that pg_config belongs to
#   make test            everything, from nothing;
#                        AREA=compile|lint|regress|isolation|tap|sink|model|random|real|clients|update
#                        TESTS="names" runs a part (see test/README.md)
#   make installcheck    the regression tests on the server that is installed and running (PGHOST,
#                        PGPORT, PGUSER); TESTS="names" runs some, ISOLATION=1 the specs, too;
#                        REGRESS and REGRESS_OPTS as with every extension
#   make check           the same on a temporary server
#   make WERROR=1        build with warnings as errors, as the tests do
#   make FAULT_POINTS=1  build with the points at which test/crash/points.sh breaks things
#   make debs            Debian packages into build/debs, each built in a clean Debian;
#                        VERSIONS="15 17 18" chooses by the server (src/packaging/README.md)
#   make dist            the archive for PGXN, of HEAD or of REF=tag, into build
#   make image-root      lib/ and share/ of an image volume into build/image-root or IMAGE_ROOT=dir
#   make debs-test       the packages, archive and volume: installed, used, upgraded, removed;
#                        PARTS="debs pgxn image", VERSIONS (test/packages/run.sh)
#   make test-matrix     the suites on every supported server; VERSIONS="17 18"; VERSIONS=bare
#                        is a machine with nothing but git and make
#   make test-faults     kills, power cuts, fault points, broken builds, analysis;
#                        PARTS="history points" runs some (test/crash/README.md);
#                        PARTS=kafka KILLS=2000 kills around a Kafka broker for long
#   make torture HOURS=n rounds of faults for so long, into test/crash/report
#   make test-mutants    builds that are broken on purpose, which tests have to catch; ALL=1
#   make analysis        analyzers, sanitizers, fuzzers, valgrind; ONLY=parts SECONDS_EACH=n
#                        LONG=1 adds all tests with assertions (test/analysis/README.md)
#   make test-random     random operations against models; TRANSACTIONS=n, SEED=n (test/random/README.md)
#   make test-clients    the programs of doc/howto: a producer and a consumer with the drivers of
#                        Python, Node, Java and Go, a payment API, holders of leases;
#                        TESTS="psycopg asyncpg jcs payments leases sqlalchemy django alembic node
#                        jdbc spring flyway pgx payments-go"; jcs is canonical JSON against a library
#   make test-kafka      the kafka sink against a real broker; TESTS=names (test/sink/README.md)
#   make test-nats       the nats sink against real servers; TESTS=names, KILLS=n (test/sink/README.md)
#   make test-redis      the redis sink against real servers; TESTS=names; KILLS=n kills around one
#   make test-rabbitmq   the rabbitmq sink against real servers; TESTS=names; KILLS=n kills around one
#   make test-mqtt       the mqtt sink against real brokers; the same
#   make test-http       the http sink against receivers that misbehave, nginx and mocks of the
#                        clouds' queues; TESTS=names, KILLS=n (test/sink/README.md)
#   make test-monitoring exporters, Prometheus, alerts and dashboard of src/packaging/monitoring;
#                        TESTS=names, DRAW=1 (test/monitoring/run.sh)
#   make test-patroni    failover under Patroni and etcd with relays at work (test/patroni/run.sh)
#   make bench           the benchmark, into test/bench/report; ONLY=names PINNED=1,
#                        QUICK=1 (a try, into build/bench-quick),
#                        BASE=commit (against that commit),
#                        PROFILE=arm and more (see test/bench/README.md)
#   make demo            money moves, everything is killed, nothing is lost: one minute
#   make example         two services and a relay, killed while they work (doc/example/README.md)
#   make server          psql in a throw-away server with this tree's extension
#   make lint, indent    check the sources; rewrite them with pg_bsd_indent
#   make freeze          store the install script of the version that is released now (sql/release)
#
# PG_CONFIG=... chooses another server than the one of pg_config in the PATH.

PG_CONFIG ?= pg_config
export PG_CONFIG

# The regression tests, in the variables that PGXS has for them.  Other people's build
# scripts may set them.  ISOLATION=1 stands for all specs.  Many a name is that of a
# test and of a spec; a name that is only a spec's needs no ISOLATION=1.
TESTS_SQL = $(patsubst sql/%.sql,%,$(filter-out sql/idempotency--%,$(wildcard sql/*.sql)))
TESTS_ISOLATION = $(patsubst test/isolation/specs/%.spec,%,$(wildcard test/isolation/specs/*.spec))
REGRESS = $(if $(TESTS),$(filter $(TESTS_SQL),$(TESTS)),$(TESTS_SQL))
SPECS = $(if $(filter 1,$(ISOLATION)),$(if $(TESTS),$(filter $(TESTS_ISOLATION),$(TESTS)),$(TESTS_ISOLATION)),$(or $(ISOLATION),$(filter-out $(TESTS_SQL),$(TESTS))))

# PGXS' own target check prints "not supported" and succeeds.  PGXS cannot be told not
# to define it, and make warns about a recipe that is replaced; so where one of these
# targets is asked for, PGXS is left out and the other goals are made first.
FALSE_GREEN = check installcheck
TEST_GOALS = test debs debs-test dist test-matrix test-faults test-mutants test-random test-clients test-kafka test-nats test-redis test-rabbitmq test-mqtt test-http test-monitoring test-patroni torture analysis lint indent server packages bench demo example
ifneq (,$(filter $(FALSE_GREEN),$(MAKECMDGOALS)))
OTHER_GOALS = $(filter-out $(FALSE_GREEN) test,$(MAKECMDGOALS))
.PHONY: $(OTHER_GOALS)
$(OTHER_GOALS):
	+$(MAKE) $@
$(FALSE_GREEN): $(OTHER_GOALS)
	@REGRESS='$(REGRESS)' REGRESS_OPTS='$(REGRESS_OPTS)' EXTRA_REGRESS_OPTS='$(EXTRA_REGRESS_OPTS)' \
		ISOLATION='$(SPECS)' ISOLATION_OPTS='$(ISOLATION_OPTS)' \
		test/setup/installcheck.sh $(if $(filter check,$@),temporary,installed)
else

EXTENSION = idempotency
EXTVERSION := $(shell sed -n "s/^default_version = '\(.*\)'$$/\1/p" idempotency.control)
MODULE_big = idempotency
SQL_SCRIPT = sql/$(EXTENSION)--$(EXTVERSION).sql

OBJS = $(patsubst %.c,%.o,$(filter-out src/sink/%,$(wildcard src/*.c src/*/*.c src/*/*/*.c)))
OBJS += $(patsubst %.c,%.o,$(wildcard src/sink/protocol/*.c))
# What was released before, and the way from there to here (sql/release/README.md).
DATA = $(filter-out sql/release/$(notdir $(SQL_SCRIPT)),$(wildcard sql/release/*.sql))
DATA_built = $(SQL_SCRIPT)
EXTRA_CLEAN = $(OBJS:.o=.d) build

PG_CPPFLAGS = -I$(srcdir)/src -DIDEM_VERSION=$(EXTVERSION)

# Named points at which tests break a process; never in a build that is used.
ifdef FAULT_POINTS
FAULT_CPPFLAGS = -DIDEMPOTENCY_FAULT_POINTS
PG_CPPFLAGS += $(FAULT_CPPFLAGS)
endif
# A newer compiler warns of more than the sources were written for.  It must not
# stop a user's build; the tests set WERROR=1.
PG_CFLAGS = -Wall -Wextra $(if $(WERROR),-Werror) -Wno-unused-parameter -Wno-sign-compare \
	-Wno-missing-field-initializers -Wno-cast-function-type \
	-fvisibility=hidden -MMD -MP

# No bitcode: it lets the JIT inline SQL-callable C functions into expressions,
# which gains nothing for functions that take locks and write rows, and it
# would make clang of the server's own version a need of every build.
override with_llvm = no

PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
SERVER_HEADERS := $(wildcard $(shell $(PG_CONFIG) --includedir-server 2>/dev/null)/postgres.h)
ifneq (,$(and $(wildcard $(PGXS)),$(SERVER_HEADERS)))
include $(PGXS)

# The server's OpenSSL, where its headers are (src/shared/digest.c); WITH_OPENSSL=no builds without.
WITH_OPENSSL ?= $(if $(filter -lcrypto,$(LIBS)),$(shell $(CC) $(CPPFLAGS) -E -include openssl/evp.h -x c /dev/null >/dev/null 2>&1 && echo yes))
ifeq (yes,$(WITH_OPENSSL))
override CPPFLAGS += -DIDEM_OPENSSL
SHLIB_LINK += -lcrypto
endif

include $(srcdir)/src/sink/sink.mk
include $(srcdir)/test/module/module.mk

IMAGE_ROOT = build/image-root
.PHONY: image-root
image-root: all
	@$(srcdir)/src/packaging/image-root.sh '$(IMAGE_ROOT)'

# PGXS knows nothing of headers; the compiler writes what it read.
-include $(OBJS:.o=.d)

# Objects of one server or compiler are never linked into a library for another.  With
# warnings as errors they are the same; the tests compile everything anew for that.
BUILD_ID := $(VERSION) $(CC) $(filter-out -Werror,$(CFLAGS)) $(CPPFLAGS) $(KAFKA_OAUTHBEARER)
$(OBJS): build/id
ifneq ($(BUILD_ID),$(shell cat build/id 2>/dev/null))
.PHONY: build/id
endif
build/id:
	@mkdir -p build
	@echo '$(BUILD_ID)' > $@

# The install script is put together from one file per area, in name order.
$(SQL_SCRIPT): $(sort $(wildcard $(srcdir)/sql/install/*.sql))
	cat $^ > $@.tmp && mv $@.tmp $@

.PHONY: freeze
freeze: $(SQL_SCRIPT)
	@test/lint/frozen.sh --freeze

else ifneq (,$(filter-out $(TEST_GOALS) clean,$(or $(MAKECMDGOALS),all)))
$(error $(PG_CONFIG) names no $(if $(wildcard $(PGXS)),server headers,PGXS): install the server's development files with test/setup/packages.sh build, or give PG_CONFIG=...)
endif
endif

# None of these needs a compiler or a server to begin with: the scripts install
# what is missing.
.PHONY: $(TEST_GOALS) $(FALSE_GREEN)
test:
	+@AREA='$(AREA)' TESTS='$(TESTS)' test/setup/run.sh
debs:
	+@VERSIONS='$(VERSIONS)' src/packaging/debs.sh
debs-test:
	+@VERSIONS='$(VERSIONS)' PARTS='$(PARTS)' test/packages/run.sh
# The release that META.json names, which is the first version there.
dist: release = $(EXTENSION)-$(shell sed -n 's/^ *"version": "\(.*\)",$$/\1/p;T;q' META.json)
dist:
	@mkdir -p build
	@git -c safe.directory='*' archive --format=zip --prefix='$(release)/' -o 'build/$(release).zip' $(or $(REF),HEAD)
	@echo 'build/$(release).zip'
lint:
	+@AREA='compile lint' TESTS='$(TESTS)' test/setup/run.sh
indent:
	@test/setup/packages.sh lint
	@test/lint/indent.sh
test-matrix:
	+@VERSIONS='$(VERSIONS)' AREA='$(AREA)' TESTS='$(TESTS)' test/matrix/run.sh
test-faults:
	+@PARTS='$(PARTS)' SEED='$(SEED)' KILLS='$(KILLS)' test/crash/faults.sh
torture:
	+@HOURS='$(HOURS)' SEED='$(SEED)' test/crash/torture.sh
test-mutants:
	+@ALL='$(ALL)' test/mutants/run.sh
test-random:
	+@TRANSACTIONS='$(TRANSACTIONS)' SEED='$(SEED)' ONLY='$(ONLY)' test/random/run.sh
test-clients:
	+@test/clients/run.sh $(TESTS)
test-kafka:
	+@test/sink/kafka/run.sh $(TESTS)
test-nats:
	+@KILLS='$(KILLS)' test/sink/nats/run.sh $(TESTS)
test-redis:
	+@KILLS='$(KILLS)' test/sink/redis/run.sh $(TESTS)
test-rabbitmq:
	+@KILLS='$(KILLS)' test/sink/rabbitmq/run.sh $(TESTS)

test-mqtt:
	+@KILLS='$(KILLS)' test/sink/mqtt/run.sh $(TESTS)
test-http:
	+@KILLS='$(KILLS)' test/sink/http/run.sh $(TESTS)
test-monitoring:
	+@DRAW='$(DRAW)' test/monitoring/run.sh $(TESTS)
test-patroni:
	+@test/patroni/run.sh
analysis:
	+@ONLY='$(ONLY)' LONG='$(LONG)' TESTS='$(TESTS)' SEED='$(SEED)' test/analysis/run.sh
server:
	@test/setup/packages.sh build
	@test/setup/server.sh shell
packages:
	@test/setup/packages.sh build test compile lint
bench:
	+@QUICK='$(QUICK)' ONLY='$(ONLY)' REMARK='$(REMARK)' DURATION='$(DURATION)' MAXSIZE='$(MAXSIZE)' IDS_MAX='$(IDS_MAX)' PROFILE='$(PROFILE)' COUNT='$(COUNT)' \
		BASE='$(BASE)' PGQUE_SQL='$(PGQUE_SQL)' PGMQ_SQL='$(PGMQ_SQL)' test/bench/run.sh
demo:
	+@test/demo/run.sh
example:
	+@doc/example/run.sh
