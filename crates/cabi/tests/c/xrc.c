/* Receiving ends of extended reliable connections that are open more than once, in a domain that two contexts
 * share. */
#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

static struct ibv_context *contexts[2];
static struct ibv_xrcd *domains[2];
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *sender, *made, *opened;
static struct ibv_srq *srq;
static uint32_t srq_num;

static void share_domain(void)
{
	char path[] = "/tmp/softverbs-xrc-XXXXXX";
	int fd = mkstemp(path);
	struct ibv_xrcd_init_attr init = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = O_CREAT};

	MUST("a file", fd >= 0 && !unlink(path));
	for (int i = 0; i < 2; i++) {
		contexts[i] = open_named("roce_lo");
		domains[i] = ibv_open_xrcd(contexts[i], &init);
		MUST("ibv_open_xrcd", domains[i]);
	}
	close(fd);
}

/* The receiving end is made and opened again by the second context. */
static void make_ends(void)
{
	struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	struct ibv_qp_open_attr open = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_type = IBV_QPT_XRC_RECV};

	attr.xrcd = open.xrcd = domains[1];
	made = ibv_create_qp_ex(contexts[1], &attr);
	MUST("a receiving end", made);
	open.qp_num = made->qp_num;
	opened = ibv_open_qp(contexts[1], &open);
	MUST("ibv_open_qp", opened);
	struct ibv_srq_init_attr_ex shared = {
		.attr = {.max_wr = 4, .max_sge = 1},
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
	};
	shared.pd = pd = ibv_alloc_pd(contexts[0]);
	shared.cq = cq = ibv_create_cq(contexts[0], 16, NULL, NULL, 0);
	shared.xrcd = domains[0];
	MUST("a domain and a queue", pd && cq);
	srq = ibv_create_srq_ex(contexts[0], &shared);
	MUST("ibv_create_srq_ex", srq && !ibv_get_srq_num(srq, &srq_num));
	memset(&attr, 0, sizeof(attr));
	attr.qp_type = IBV_QPT_XRC_SEND;
	attr.comp_mask = IBV_QP_INIT_ATTR_PD;
	attr.pd = pd;
	attr.send_cq = cq;
	attr.cap.max_send_wr = 4;
	sender = ibv_create_qp_ex(contexts[0], &attr);
	MUST("a sending end", sender);
	MUST("to INIT", !to_init(made, IBV_ACCESS_REMOTE_WRITE) && !to_init(sender, 0));
	MUST("to RTR", !to_rtr(made, sender->qp_num));
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR,
				  .path_mtu = IBV_MTU_1024,
				  .dest_qp_num = made->qp_num,
				  .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}}};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
	MUST("ibv_query_gid", !ibv_query_gid(contexts[0], 1, 0, &rtr.ah_attr.grh.dgid));
	MUST("to RTR", !ibv_modify_qp(sender, &rtr,
				      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN));
	MUST("to RTS", !ibv_modify_qp(sender, &rts,
				      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void *destroy(void *qp)
{
	EQ("ibv_destroy_qp", ibv_destroy_qp(qp), 0);
	return qp;
}

/* Whether destroying a queue pair waits, until an event is acknowledged. */
static void destroy_with(struct ibv_qp *qp, struct ibv_async_event *event)
{
	struct timespec soon;
	pthread_t thread;
	void *of;

	MUST("a thread", !pthread_create(&thread, NULL, destroy, qp));
	clock_gettime(CLOCK_REALTIME, &soon);
	soon.tv_nsec += 50 * 1000 * 1000;
	soon.tv_sec += soon.tv_nsec / 1000000000;
	soon.tv_nsec %= 1000000000;
	if (pthread_timedjoin_np(thread, &of, &soon) == ETIMEDOUT) {
		ibv_ack_async_event(event);
		EQ("and ends", pthread_join(thread, &of), 0);
	} else
		TRUE("destroying waits", 0);
}

int main(void)
{
	struct ibv_send_wr wr = request(NULL, IBV_WR_RDMA_WRITE);
	struct ibv_async_event event;
	struct pollfd ready;

	share_domain();
	make_ends();
	/* The other handle goes, and takes nothing along. */
	EQ("ibv_destroy_qp", ibv_destroy_qp(opened), 0);
	wr.num_sge = 0;
	wr.qp_type.xrc.remote_srqn = srq_num;
	EQ("ibv_post_send", post(sender, &wr), 0);
	EQ("written", wait_wc(cq).status, IBV_WC_SUCCESS);
	ready = (struct pollfd){.fd = contexts[1]->async_fd, .events = POLLIN};
	MUST("an event in time", poll(&ready, 1, 30000) == 1);
	EQ("ibv_get_async_event", ibv_get_async_event(contexts[1], &event), 0);
	EQ("what happened", event.event_type, IBV_EVENT_COMM_EST);
	TRUE("to which end", event.element.qp == made);
	EQ("a domain that is used", ibv_close_xrcd(domains[1]), EBUSY);
	destroy_with(made, &event);
	EQ("ibv_destroy_qp", ibv_destroy_qp(sender), 0);
	EQ("ibv_destroy_srq", ibv_destroy_srq(srq), 0);
	EQ("ibv_destroy_cq", ibv_destroy_cq(cq), 0);
	EQ("ibv_dealloc_pd", ibv_dealloc_pd(pd), 0);
	for (int i = 0; i < 2; i++) {
		EQ("ibv_close_xrcd", ibv_close_xrcd(domains[i]), 0);
		EQ("ibv_close_device", ibv_close_device(contexts[i]), 0);
	}
	return failures != 0;
}
