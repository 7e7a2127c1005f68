SINK_CPPFLAGS_postgres = -I$(shell $(PG_CONFIG) --includedir)
SINK_LIBS_postgres = -L$(shell $(PG_CONFIG) --libdir) -lpq -lpthread
