# The sink protocol and the sink programs.  Included by the top-level Makefile
# after PGXS.  src/sink/protocol is linked into the server library, too; the
# programs compile their own objects, without the server's headers and flags.
#
#   make sinks            build the programs
#   make install-sinks    install all; make install-sink-postgres one
#   make check-sink       test codec, framework and programs, in about a minute

SINK_SRC = $(srcdir)/src/sink
SINK_BINDIR = src/sink/bin
SINK_BUILDDIR = src/sink/build
sinkdir = $(pkglibdir)/idempotency-sinks

# SINK_COPT, from the environment or the command line, is what COPT is to the
# server library: flags for compiler and linker on top of all others.
SINK_WARN = -Wall -Wextra $(if $(WERROR),-Werror) -Wmissing-prototypes
SINK_CFLAGS = -std=gnu11 -O2 -g $(SINK_WARN) -fno-strict-aliasing -fwrapv \
	-fstack-protector-strong -D_FORTIFY_SOURCE=2 -fPIE -MMD -MP -I$(srcdir)/src \
	$(FAULT_CPPFLAGS) $(SINK_COPT)
SINK_LDFLAGS = -pie -Wl,-z,relro -Wl,-z,now -Wl,--as-needed $(SINK_RPATH) $(SINK_COPT)

# Libraries that are shipped with a program are found beside the program, or beside
# the extension's library, wherever the two are mounted: a program has no
# environment, and an image volume is not known to ld.so.  DT_RPATH rather than
# DT_RUNPATH, because the libraries that those libraries need are looked for by
# it, too.
SINK_RPATH = -Wl,--disable-new-dtags -Wl,-rpath,'$$ORIGIN:$$ORIGIN/..'

SINK_SHARED = $(wildcard $(SINK_SRC)/protocol/*.c) $(wildcard $(SINK_SRC)/common/*.c)
SINK_NULL = $(SINK_SHARED) $(wildcard $(SINK_SRC)/null/*.c)
SINK_POSTGRES = $(SINK_SHARED) $(wildcard $(SINK_SRC)/postgres/*.c)
SINK_POSTGRES_CFLAGS = -I$(shell $(PG_CONFIG) --includedir)
SINK_POSTGRES_LIBS = -L$(shell $(PG_CONFIG) --libdir) -lpq -lpthread

SINK_PROGRAMS = $(SINK_BINDIR)/idempotency-sink-null \
	$(SINK_BINDIR)/idempotency-sink-postgres

# $(call sink_objs,directory,sources)
sink_objs = $(patsubst $(SINK_SRC)/%.c,$(1)/%.o,$(2))

all: sinks
sinks: $(SINK_PROGRAMS)

$(SINK_BUILDDIR)/%.o: $(SINK_SRC)/%.c build/id
	@mkdir -p $(@D)
	$(CC) $(SINK_CFLAGS) $(if $(findstring /postgres/,$<),$(SINK_POSTGRES_CFLAGS)) -c -o $@ $<

$(SINK_BINDIR)/idempotency-sink-null: $(call sink_objs,$(SINK_BUILDDIR),$(SINK_NULL))
	@mkdir -p $(@D)
	$(CC) $(SINK_LDFLAGS) -o $@ $^

$(SINK_BINDIR)/idempotency-sink-postgres: $(call sink_objs,$(SINK_BUILDDIR),$(SINK_POSTGRES))
	@mkdir -p $(@D)
	$(CC) $(SINK_LDFLAGS) -o $@ $^ $(SINK_POSTGRES_LIBS)

-include $(wildcard $(SINK_BUILDDIR)/*/*.d $(SINK_BUILDDIR)/*/*/*.d)

install: install-sinks
install-sinks: sinks
	$(MKDIR_P) '$(DESTDIR)$(sinkdir)'
	$(INSTALL_PROGRAM) $(SINK_PROGRAMS) '$(DESTDIR)$(sinkdir)/'

install-sink-%: $(SINK_BINDIR)/idempotency-sink-%
	$(MKDIR_P) '$(DESTDIR)$(sinkdir)'
	$(INSTALL_PROGRAM) $< '$(DESTDIR)$(sinkdir)/'

uninstall: uninstall-sinks
uninstall-sinks:
	rm -f $(patsubst $(SINK_BINDIR)/%,'$(DESTDIR)$(sinkdir)/%',$(SINK_PROGRAMS))

clean: clean-sinks
clean-sinks:
	rm -rf $(SINK_BINDIR) $(SINK_BUILDDIR)

.PHONY: sinks install-sinks uninstall-sinks clean-sinks check-sink

# The tests run programs and codec with the sanitizers of the compiler.
SINK_SANDIR = $(SINK_BUILDDIR)/san
SINK_SAN = -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -U_FORTIFY_SOURCE
SINK_TEST_SRC = $(wildcard $(SINK_SRC)/protocol/*.c) $(SINK_SRC)/common/stream.c
SINK_TESTS = $(SINK_SANDIR)/golden_test $(SINK_SANDIR)/fuzz \
	$(SINK_SANDIR)/idempotency-sink-null $(SINK_SANDIR)/idempotency-sink-postgres

$(SINK_SANDIR)/%.o: $(SINK_SRC)/%.c build/id
	@mkdir -p $(@D)
	$(CC) $(SINK_CFLAGS) $(SINK_SAN) $(if $(findstring /postgres/,$<),$(SINK_POSTGRES_CFLAGS)) -c -o $@ $<

$(SINK_SANDIR)/test/%.o: $(srcdir)/test/sink/%.c
	@mkdir -p $(@D)
	$(CC) $(SINK_CFLAGS) $(SINK_SAN) -DSTANDALONE -c -o $@ $<

$(SINK_SANDIR)/golden_test $(SINK_SANDIR)/fuzz: $(SINK_SANDIR)/%: \
		$(SINK_SANDIR)/test/%.o $(call sink_objs,$(SINK_SANDIR),$(SINK_TEST_SRC))
	$(CC) $(SINK_LDFLAGS) $(SINK_SAN) -o $@ $^

$(SINK_SANDIR)/idempotency-sink-null: $(call sink_objs,$(SINK_SANDIR),$(SINK_NULL))
	$(CC) $(SINK_LDFLAGS) $(SINK_SAN) -o $@ $^

$(SINK_SANDIR)/idempotency-sink-postgres: $(call sink_objs,$(SINK_SANDIR),$(SINK_POSTGRES))
	$(CC) $(SINK_LDFLAGS) $(SINK_SAN) -o $@ $^ $(SINK_POSTGRES_LIBS)

FUZZ_SECONDS = 20
check-sink: $(SINK_TESTS)
	SINK_BINDIR=$(SINK_SANDIR) FUZZ_SECONDS=$(FUZZ_SECONDS) PG_CONFIG='$(PG_CONFIG)' \
		$(srcdir)/test/sink/check.sh
