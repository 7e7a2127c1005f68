# Debian: hiredis libhiredis-dev

# hiredis has TLS since 1.0, in a library of its own; Debian 12 has 0.14.  Where it is
# missing, the program refuses the option "tls".
REDIS_TLS := $(shell $(PKG_CONFIG) --exists hiredis_ssl openssl 2>/dev/null && echo yes)
SINK_CPPFLAGS_redis = $(if $(REDIS_TLS),-DRSINK_TLS)
SINK_MODULES_redis = hiredis $(if $(REDIS_TLS),hiredis_ssl openssl)
