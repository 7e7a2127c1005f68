# A module with SQL functions by which tests drive parts of the library.  Included by the
# top-level Makefile after PGXS.  Neither "all" nor "install" makes it.
#
#   make test-module           build it
#   make install-test-module   install it; test/setup/lib.sh does, into a stage
#
# The library exports only the functions that the server looks up by name, so the
# module cannot call the library's other functions.  Instead the library's objects
# are linked into the module, without those of the SQL functions.  Their calls of
# idem_keys_find come by keys_fn.c.

TEST_MODULE = test/module/idempotency_test.so
TEST_MODULE_OWN = $(patsubst %.c,%.o,$(wildcard test/module/*.c))
TEST_MODULE_RELAY = src/relay/blame.o src/relay/engine/pace.o src/relay/stream/hunt.o src/relay/stream/json_text.o src/relay/position/walk.o src/relay/position/position.o
TEST_MODULE_OBJS = $(TEST_MODULE_OWN) $(filter-out %_fn.o,$(filter src/outbox/% src/shared/% src/store/% src/lease/token.o src/lease/table.o src/cursor/table.o $(TEST_MODULE_RELAY),$(OBJS)))

test-module: $(TEST_MODULE)
$(TEST_MODULE): $(TEST_MODULE_OBJS)
	$(CC) $(CFLAGS) $^ $(LDFLAGS) $(LDFLAGS_SL) -Wl,--wrap=idem_keys_find -shared -o $@

$(TEST_MODULE_OWN): build/id
-include $(TEST_MODULE_OWN:.o=.d)

install-test-module: test-module
	$(MKDIR_P) '$(DESTDIR)$(pkglibdir)'
	$(INSTALL_SHLIB) $(TEST_MODULE) '$(DESTDIR)$(pkglibdir)/'

clean: clean-test-module
clean-test-module:
	rm -f $(TEST_MODULE) $(TEST_MODULE_OWN) $(TEST_MODULE_OWN:.o=.d)

.PHONY: test-module install-test-module clean-test-module
