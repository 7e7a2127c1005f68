# Debian: rdkafka librdkafka-dev
# Debian: libcurl libcurl4-openssl-dev

# The kafka sink asks token servers for logins by OAUTHBEARER, through libcurl.
# Without libcurl, or with KAFKA_OAUTHBEARER=no, the program refuses such logins.
KAFKA_OAUTHBEARER := $(if $(shell $(PKG_CONFIG) --exists libcurl 2>/dev/null && echo yes),yes,lacking)
ifeq (yes,$(KAFKA_OAUTHBEARER))
SINK_CPPFLAGS_kafka = -DKSINK_OAUTHBEARER
endif
SINK_MODULES_kafka = rdkafka $(if $(filter yes,$(KAFKA_OAUTHBEARER)),libcurl)
ifeq (lacking,$(KAFKA_OAUTHBEARER))
SINK_SKIPPED += sink-skipped-oauthbearer
.PHONY: sink-skipped-oauthbearer
sink-skipped-oauthbearer:
	@echo '$(if $(WERROR),error,warning): idempotency-sink-kafka cannot log in by OAUTHBEARER: $(PKG_CONFIG) finds no libcurl; install the development files, as test/setup/packages.sh build does, or set KAFKA_OAUTHBEARER=no' >&2
	@$(if $(WERROR),false,true)
endif
