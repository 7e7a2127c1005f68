# Build, install and test the sink protocol and the sink programs.  The top-level
# Makefile includes this file after PGXS.  The server library links
# src/sink/protocol, too.  The programs compile objects of their own, without the
# server's headers and flags.
#
#	make sinks                    build the programs
#	make install-sinks            install all programs
#	make install-sink-postgres    install one program
#	make check-sink               test codec, framework and programs, in about two minutes
#
# A program has a folder beside this file and a line below, under "The programs".

SINK_SRC = $(srcdir)/src/sink
SINK_BINDIR = src/sink/bin
SINK_BUILDDIR = src/sink/build
SINK_SANDIR = $(SINK_BUILDDIR)/san
sinkdir = $(pkglibdir)/idempotency-sinks
PKG_CONFIG ?= pkg-config

# SINK_COPT, from the environment or the command line, holds flags for compiler and
# linker that follow all other flags.  The server library has COPT for the same.
SINK_WARN = -Wall -Wextra $(if $(WERROR),-Werror) -Wmissing-prototypes
SINK_CFLAGS = -std=gnu11 -O2 -g $(SINK_WARN) -fno-strict-aliasing -fwrapv \
	-fstack-protector-strong -D_FORTIFY_SOURCE=2 -fPIE -MMD -MP -I$(srcdir)/src \
	$(FAULT_CPPFLAGS) $(SINK_COPT)
SINK_LDFLAGS = -pie -Wl,-z,relro -Wl,-z,now -Wl,--as-needed $(SINK_RPATH) $(SINK_COPT)

# The tests run programs and codec with the sanitizers of the compiler.
SINK_SAN = -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -U_FORTIFY_SOURCE

# A program finds the libraries that are shipped with it beside itself, or beside
# the extension's library, wherever the two are mounted.  It needs this path,
# because it has no environment, and because ld.so does not know an image volume.
# The path is in DT_RPATH and not in DT_RUNPATH: ld.so uses DT_RPATH for the
# libraries of those libraries, too.
SINK_RPATH = -Wl,--disable-new-dtags -Wl,-rpath,'$$ORIGIN:$$ORIGIN/..'

# $(call sink_objs,directory,folders): the objects of those folders, below directory
sink_objs = $(patsubst $(SINK_SRC)/%.c,$(1)/%.o,$(wildcard $(2:%=$(SINK_SRC)/%/*.c)))

# $(call sink_program,FOLDER,MODULES,optional)
#
# Build idempotency-sink-FOLDER from src/sink/FOLDER, protocol and common.  MODULES
# are names that pkg-config knows.  For a library that pkg-config does not know,
# set SINK_CPPFLAGS_FOLDER and SINK_LIBS_FOLDER above the program's line.  If a
# module is not installed, make fails; with "optional", make warns and leaves the
# program out.  WERROR=1, which all tests set, makes the warning an error.
define sink_program
SINK_FOLDERS += $(1)
SINK_LACKS_$(1) := $$(strip $$(foreach module,$(2),$$(shell $$(PKG_CONFIG) --exists $$(module) 2>/dev/null || echo $$(module))))
ifeq (,$$(SINK_LACKS_$(1)))
SINK_CPPFLAGS_$(1) += $$(if $(2),$$(shell $$(PKG_CONFIG) --cflags $(2)))
SINK_LIBS_$(1) += $$(if $(2),$$(shell $$(PKG_CONFIG) --libs $(2)))
SINK_PROGRAMS += $$(SINK_BINDIR)/idempotency-sink-$(1)
SINK_SAN_PROGRAMS += $$(SINK_SANDIR)/idempotency-sink-$(1)

$$(SINK_BUILDDIR)/$(1)/%.o $$(SINK_SANDIR)/$(1)/%.o: SINK_CPPFLAGS = $$(SINK_CPPFLAGS_$(1))

$$(SINK_BINDIR)/idempotency-sink-$(1): $$(call sink_objs,$$(SINK_BUILDDIR),protocol common $(1))
	@mkdir -p $$(@D)
	$$(CC) $$(SINK_LDFLAGS) -o $$@ $$^ $$(SINK_LIBS_$(1))

$$(SINK_SANDIR)/idempotency-sink-$(1): $$(call sink_objs,$$(SINK_SANDIR),protocol common $(1))
	$$(CC) $$(SINK_LDFLAGS) $$(SINK_SAN) -o $$@ $$^ $$(SINK_LIBS_$(1))
else
SINK_SKIPPED += sink-skipped-$(1)
SINK_REASON_$(1) = idempotency-sink-$(1) is not built: $$(PKG_CONFIG) finds no $$(SINK_LACKS_$(1)); install the development files, as test/setup/packages.sh build does

.PHONY: sink-skipped-$(1)
sink-skipped-$(1):
	@echo '$$(if $(filter optional,$(3)),$$(if $$(WERROR),error,warning),error): $$(SINK_REASON_$(1))' >&2
	@$$(if $(filter optional,$(3)),$$(if $$(WERROR),false,true),false)

$$(SINK_BINDIR)/idempotency-sink-$(1):
	@echo 'error: $$(SINK_REASON_$(1))' >&2
	@false
endif
endef

# The programs.  The variables of a program stand above its line.
SINK_PROGRAMS =
SINK_SAN_PROGRAMS =
SINK_SKIPPED =
SINK_FOLDERS =

$(eval $(call sink_program,null))

SINK_CPPFLAGS_postgres = -I$(shell $(PG_CONFIG) --includedir)
SINK_LIBS_postgres = -L$(shell $(PG_CONFIG) --libdir) -lpq -lpthread
$(eval $(call sink_program,postgres))

# The kafka sink asks token servers for logins by OAUTHBEARER, through libcurl.
# Without libcurl, or with KAFKA_OAUTHBEARER=no, the program refuses such logins.
KAFKA_OAUTHBEARER := $(if $(shell $(PKG_CONFIG) --exists libcurl 2>/dev/null && echo yes),yes,lacking)
ifeq (yes,$(KAFKA_OAUTHBEARER))
SINK_CPPFLAGS_kafka = -DKSINK_OAUTHBEARER
endif
$(eval $(call sink_program,kafka,rdkafka $(if $(filter yes,$(KAFKA_OAUTHBEARER)),libcurl),optional))
ifeq (lacking,$(KAFKA_OAUTHBEARER))
SINK_SKIPPED += sink-skipped-oauthbearer
.PHONY: sink-skipped-oauthbearer
sink-skipped-oauthbearer:
	@echo '$(if $(WERROR),error,warning): idempotency-sink-kafka cannot log in by OAUTHBEARER: $(PKG_CONFIG) finds no libcurl; install the development files, as test/setup/packages.sh build does, or set KAFKA_OAUTHBEARER=no' >&2
	@$(if $(WERROR),false,true)
endif

$(eval $(call sink_program,http,libcurl libcrypto,optional))

SINK_UNKNOWN := $(filter-out protocol common build $(SINK_FOLDERS), \
	$(patsubst $(SINK_SRC)/%/,%,$(sort $(dir $(wildcard $(SINK_SRC)/*/*.c)))))
ifneq (,$(SINK_UNKNOWN))
$(error no program is built from $(SINK_UNKNOWN:%=src/sink/%): src/sink/sink.mk has no line for it)
endif

all: sinks
sinks: $(SINK_PROGRAMS) $(SINK_SKIPPED)

$(SINK_BUILDDIR)/%.o: $(SINK_SRC)/%.c build/id
	@mkdir -p $(@D)
	$(CC) $(SINK_CFLAGS) $(SINK_CPPFLAGS) -c -o $@ $<

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
	rm -f $(SINK_FOLDERS:%='$(DESTDIR)$(sinkdir)/idempotency-sink-%')

clean: clean-sinks
clean-sinks:
	rm -rf $(SINK_BINDIR) $(SINK_BUILDDIR)

.PHONY: sinks install-sinks uninstall-sinks clean-sinks check-sink

SINK_TESTS = $(SINK_SANDIR)/golden_test $(SINK_SANDIR)/fuzz

$(SINK_SANDIR)/%.o: $(SINK_SRC)/%.c build/id
	@mkdir -p $(@D)
	$(CC) $(SINK_CFLAGS) $(SINK_SAN) $(SINK_CPPFLAGS) -c -o $@ $<

$(SINK_SANDIR)/test/%.o: $(srcdir)/test/sink/%.c
	@mkdir -p $(@D)
	$(CC) $(SINK_CFLAGS) $(SINK_SAN) -DSTANDALONE -c -o $@ $<

$(SINK_TESTS): $(SINK_SANDIR)/%: $(SINK_SANDIR)/test/%.o \
		$(call sink_objs,$(SINK_SANDIR),protocol) $(SINK_SANDIR)/common/stream.o
	$(CC) $(SINK_LDFLAGS) $(SINK_SAN) -o $@ $^

FUZZ_SECONDS = 20
check-sink: $(SINK_TESTS) $(SINK_SAN_PROGRAMS) $(SINK_SKIPPED)
	SINK_BINDIR=$(SINK_SANDIR) FUZZ_SECONDS=$(FUZZ_SECONDS) PG_CONFIG='$(PG_CONFIG)' \
		$(srcdir)/test/sink/check.sh
