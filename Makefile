# idempotency: exactly-once effects for PostgreSQL
#
#   make                 build the library, the install script and the sink programs
#   make install         install into the server that pg_config belongs to

EXTENSION = idempotency
EXTVERSION = 1.0
MODULE_big = idempotency
SQL_SCRIPT = sql/$(EXTENSION)--$(EXTVERSION).sql

OBJS = $(patsubst %.c,%.o,$(filter-out src/sink/%,$(wildcard src/*.c src/*/*.c)))
OBJS += $(patsubst %.c,%.o,$(wildcard src/sink/protocol/*.c))
DATA_built = $(SQL_SCRIPT)
EXTRA_CLEAN = $(OBJS:.o=.d)

PG_CPPFLAGS = -I$(srcdir)/src
PG_CFLAGS = -Wall -Wextra -Werror -Wno-unused-parameter -Wno-sign-compare \
	-Wno-missing-field-initializers -Wno-cast-function-type \
	-fvisibility=hidden -MMD -MP

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

include $(srcdir)/src/sink/sink.mk

# PGXS knows nothing of headers; the compiler writes what it read.
-include $(OBJS:.o=.d)

# The install script is put together from one file per area, in name order.
$(SQL_SCRIPT): $(sort $(wildcard $(srcdir)/sql/install/*.sql))
	cat $^ > $@.tmp && mv $@.tmp $@
