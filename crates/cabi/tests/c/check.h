/* What the C programs of the tests have in common: checks that name themselves, and two queue pairs of one
 * process that are connected by hand over the loopback interface. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int failures;

/* Compares two numbers and says so if they differ. */
#define EQ(what, got, want)                                                                            \
	do {                                                                                           \
		long long got_ = (long long)(got), want_ = (long long)(want);                          \
		if (got_ != want_) {                                                                   \
			failures++;                                                                    \
			printf("%s:%d: %s: %lld, not %lld\n", __FILE__, __LINE__, what, got_, want_);  \
		}                                                                                      \
	} while (0)

#define TRUE(what, condition) EQ(what, !!(condition), 1)

/* A call that returns a pointer: none, and errno says why. */
#define REFUSED(what, call, why)                                                                       \
	do {                                                                                           \
		errno = 0;                                                                             \
		void *made_ = (void *)(call);                                                          \
		int errno_ = errno;                                                                    \
		TRUE(what " returns no pointer", made_ == NULL);                                       \
		EQ(what " sets errno", errno_, why);                                                   \
	} while (0)

/* Something that the rest of the program cannot do without. */
#define MUST(what, condition)                                                                          \
	do {                                                                                           \
		if (!(condition)) {                                                                    \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, what, strerror(errno));          \
			exit(2);                                                                       \
		}                                                                                      \
	} while (0)

static inline struct ibv_context *open_named(const char *name)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context = NULL;

	MUST("ibv_get_device_list", list);
	for (int i = 0; i < count; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	MUST("ibv_open_device", context);
	return context;
}

/* One end of a connection: with its own queues. */
struct end {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	/* Sends that may be outstanding: at least those asked for. */
	int room;
};

static inline struct end make_end(struct ibv_pd *pd, enum ibv_qp_type type, struct ibv_srq *srq)
{
	struct end end = {0};
	struct ibv_qp_init_attr attr = {0};

	end.cq = ibv_create_cq(pd->context, 64, NULL, NULL, 0);
	MUST("ibv_create_cq", end.cq);
	attr.send_cq = attr.recv_cq = end.cq;
	attr.srq = srq;
	attr.qp_type = type;
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 8;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 2;
	attr.cap.max_inline_data = 64;
	end.qp = ibv_create_qp(pd, &attr);
	MUST("ibv_create_qp", end.qp);
	end.room = attr.cap.max_send_wr;
	TRUE("what was asked for is granted", end.room >= 8 && end.room < 20);
	return end;
}

static inline int to_init(struct ibv_qp *qp, int access)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static inline int to_rtr(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 1,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 0, .hop_limit = 64}},
	};

	MUST("ibv_query_gid", !ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid));
	return ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static inline int to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 4,
	};

	return ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static inline void connect_ends(struct end *one, struct end *two, int access)
{
	struct end *ends[] = {one, two};

	for (int i = 0; i < 2; i++) {
		MUST("to INIT", !to_init(ends[i]->qp, access));
		MUST("to RTR", !to_rtr(ends[i]->qp, ends[!i]->qp->qp_num));
		MUST("to RTS", !to_rts(ends[i]->qp));
	}
}

static inline void destroy_end(struct end *end)
{
	EQ("ibv_destroy_qp", ibv_destroy_qp(end->qp), 0);
	EQ("ibv_destroy_cq", ibv_destroy_cq(end->cq), 0);
}

/* Waits for a completion, half a minute at most. */
static inline struct ibv_wc wait_wc(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + 30;
	int got;

	while ((got = ibv_poll_cq(cq, 1, &wc)) == 0)
		MUST("a completion in time", time(NULL) < end);
	MUST("ibv_poll_cq", got == 1);
	return wc;
}

/* Of a send or write from one piece of memory. */
static inline struct ibv_send_wr request(struct ibv_sge *sge, enum ibv_wr_opcode opcode)
{
	struct ibv_send_wr wr = {.sg_list = sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};

	return wr;
}

static inline int post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;

	return ibv_post_send(qp, wr, &bad);
}

static inline int post_recv(struct ibv_qp *qp, struct ibv_sge *sge)
{
	struct ibv_recv_wr wr = {.wr_id = 77, .sg_list = sge, .num_sge = sge ? 1 : 0}, *bad = NULL;

	return ibv_post_recv(qp, &wr, &bad);
}

#endif
