# Build, install and test the sink protocol and the sink programs.  The top-level
# Makefile includes this file after PGXS.  The server library links
# src/sink/protocol, too.  The programs compile objects of their own, without the
# server's headers and flags.
#
#	make sinks                    build the programs
#	make install-sinks            install all programs
#	make install-sink-postgres    install one program
#	make install SINK_FOLDERS=    install the library without any
#	make check-sink               test codec, framework and programs, in about two minutes
#
# Each folder beside this file, except protocol and common, is a program.  A program
# that needs a library says so in the file program.mk of its folder.

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

# $(call sink_program,FOLDER)
#
# Build idempotency-sink-FOLDER from src/sink/FOLDER, protocol and common.  The folder's
# program.mk may set
#	SINK_MODULES_FOLDER			names of libraries that pkg-config knows.  If one is not
#								installed, make warns and leaves the program out; WERROR=1,
#								which all tests set, makes the warning an error
#	SINK_CPPFLAGS_FOLDER, SINK_LIBS_FOLDER	flags for libraries that pkg-config does not know
# and has a line "# Debian: MODULE PACKAGE" per module, for test/setup/packages.sh.
define sink_program
SINK_LACKS_$(1) := $$(strip $$(foreach module,$$(SINK_MODULES_$(1)),$$(shell $$(PKG_CONFIG) --exists $$(module) 2>/dev/null || echo $$(module))))
ifeq (,$$(SINK_LACKS_$(1)))
SINK_CPPFLAGS_$(1) += $$(if $$(SINK_MODULES_$(1)),$$(shell $$(PKG_CONFIG) --cflags $$(SINK_MODULES_$(1))))
SINK_LIBS_$(1) += $$(if $$(SINK_MODULES_$(1)),$$(shell $$(PKG_CONFIG) --libs $$(SINK_MODULES_$(1))))
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
	@echo '$$(if $$(WERROR),error,warning): $$(SINK_REASON_$(1))' >&2
	@$$(if $$(WERROR),false,true)

$$(SINK_BINDIR)/idempotency-sink-$(1):
	@echo 'error: $$(SINK_REASON_$(1))' >&2
	@false
endif
endef

SINK_PROGRAMS =
SINK_SAN_PROGRAMS =
SINK_SKIPPED =
SINK_FOLDERS := $(filter-out protocol common build,$(patsubst $(SINK_SRC)/%/,%,$(sort $(dir $(wildcard $(SINK_SRC)/*/*.c)))))
-include $(SINK_FOLDERS:%=$(SINK_SRC)/%/program.mk)
$(foreach folder,$(SINK_FOLDERS),$(eval $(call sink_program,$(folder))))

all: sinks
sinks: $(SINK_PROGRAMS) $(SINK_SKIPPED)

$(SINK_BUILDDIR)/%.o: $(SINK_SRC)/%.c build/id
	@mkdir -p $(@D)
	$(CC) $(SINK_CFLAGS) $(SINK_CPPFLAGS) -c -o $@ $<

-include $(wildcard $(SINK_BUILDDIR)/*/*.d $(SINK_BUILDDIR)/*/*/*.d)

install: install-sinks
install-sinks: sinks
	$(if $(SINK_PROGRAMS),$(MKDIR_P) '$(DESTDIR)$(sinkdir)')
	$(if $(SINK_PROGRAMS),$(INSTALL_PROGRAM) $(SINK_PROGRAMS) '$(DESTDIR)$(sinkdir)/')

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
