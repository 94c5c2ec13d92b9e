/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Verbs that only Balboa's cards have, for programs that are linked with libibverbs and with nothing of Balboa's.
 *
 * balboa_dv_create_qp makes a queue pair with services on the path of its packets: see docs/services-attach.md. Define
 * _GNU_SOURCE before the first #include (dladdr needs it; C++ compilers do so).
 */
#ifndef BALBOA_DV_H
#define BALBOA_DV_H

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>

#if defined(__GLIBC__) && !defined(__USE_GNU)
#error "define _GNU_SOURCE before the first #include: balboa_dv.h asks dladdr for the provider"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The ends of messages at which services stand. */
enum balboa_dv_side {
	BALBOA_DV_SIDE_BOTH = 0,
	/* The end that asks: the data of its READs. */
	BALBOA_DV_SIDE_REQUESTER = 1,
	/* The end that is asked: its peer's WRITEs and SENDs. */
	BALBOA_DV_SIDE_RESPONDER = 2
};

/* A setting of a service, as `balboa service attach` has it as an option: "patterns" is the text of the file. */
struct balboa_dv_setting {
	/* Its name, zero-terminated. */
	const char *name;
	/* Its value, and the bytes of that: 32 KiB at most. */
	const void *value;
	uint64_t length;
};

/* Services of a queue pair. */
struct balboa_dv_services {
	/* Bits of later fields; there are none yet, so it is 0. */
	uint64_t comp_mask;
	/* The names of the services, zero-terminated, in the order in which packets that come meet them. */
	const char *const *names;
	/* Their settings. */
	const struct balboa_dv_setting *settings;
	/* The number of names, and that of settings. */
	uint32_t num_names;
	uint32_t num_settings;
	/* One of enum balboa_dv_side. */
	uint32_t side;
	/* 0. */
	uint32_t reserved;
};

/*
 * Makes a queue pair as ibv_create_qp_ex does, all of whose packets pass these services. It must be a reliable connection.
 *
 * NULL, and errno: EOPNOTSUPP where the device is none of Balboa's, its provider is too old, or the card has no place for
 * services; EINVAL where there is no such service, or the services do not fit together or to the settings; ENOMEM beyond
 * the number of queue pairs with services that a program may have; else as ibv_create_qp_ex. With VERBS_LOG_LEVEL=2
 * libibverbs' log says why.
 */
static inline struct ibv_qp *balboa_dv_create_qp(struct ibv_context *context,
						 struct ibv_qp_init_attr_ex *attr,
						 const struct balboa_dv_services *services)
{
	union {
		void *object;
		struct ibv_qp *(*function)(struct ibv_context *, struct ibv_qp_init_attr_ex *,
					   const struct balboa_dv_services *);
	} create = { NULL };
	union {
		int (*function)(struct ibv_cq *, int, struct ibv_wc *);
		void *object;
	} poll = { context->ops.poll_cq };
	Dl_info provider;

	/* libibverbs has loaded the provider for itself; a function of the context's tells its file. */
	if (dladdr(poll.object, &provider) && provider.dli_fname) {
		void *library = dlopen(provider.dli_fname, RTLD_LAZY | RTLD_NOLOAD);

		if (library) {
			create.object = dlsym(library, "balboa_dv_create_qp");
			dlclose(library);
		}
	}
	if (!create.object) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return create.function(context, attr, services);
}

#ifdef __cplusplus
}
#endif

#endif
