/* Requests that fail when they are carried out: the statuses of their completions at both ends, and the
 * events that tell of them. */
#include "check.h"

#include <fcntl.h>
#include <pthread.h>

enum { SIZE = 4096 };

static char local[SIZE], remote[SIZE];
static struct ibv_context *context;
static struct ibv_pd *pd, *other_pd;
static struct ibv_mr *mr, *remote_mr, *read_only, *other_mr;

/* Posts one request on a connection of its own, and returns its status. */
static enum ibv_wc_status status_of(struct ibv_send_wr *wr, int qp_access, struct ibv_sge *receive,
				    enum ibv_wc_status *received)
{
	struct end one = make_end(pd, IBV_QPT_RC, NULL), two = make_end(pd, IBV_QPT_RC, NULL);
	struct ibv_send_wr next = request(NULL, IBV_WR_SEND);
	struct ibv_wc wc;
	enum ibv_wc_status status;

	next.num_sge = 0;
	connect_ends(&one, &two, qp_access);
	if (receive)
		MUST("ibv_post_recv", !post_recv(two.qp, receive));
	MUST("ibv_post_send", !post(one.qp, wr));
	wc = wait_wc(one.cq);
	status = wc.status;
	EQ("the queue pair of the completion", wc.qp_num, one.qp->qp_num);
	if (status != IBV_WC_SUCCESS) {
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;

		MUST("ibv_query_qp", !ibv_query_qp(one.qp, &attr, IBV_QP_STATE, &init));
		EQ("state after an error", attr.qp_state, IBV_QPS_ERR);
		EQ("a request after an error", post(one.qp, &next), 0);
		EQ("is flushed", wait_wc(one.cq).status, IBV_WC_WR_FLUSH_ERR);
	}
	if (received)
		*received = wait_wc(two.cq).status;
	destroy_end(&one);
	destroy_end(&two);
	return status;
}

static void keys_and_rights(void)
{
	struct ibv_sge sge = {.addr = (uintptr_t)local, .length = 64, .lkey = mr->lkey};
	struct ibv_send_wr wr = request(&sge, IBV_WR_RDMA_WRITE);
	int all = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

	wr.wr.rdma.remote_addr = (uintptr_t)remote;
	wr.wr.rdma.rkey = remote_mr->rkey;
	EQ("a write", status_of(&wr, all, NULL, NULL), IBV_WC_SUCCESS);
	sge.lkey ^= 1;
	EQ("a wrong lkey", status_of(&wr, all, NULL, NULL), IBV_WC_LOC_PROT_ERR);
	sge.lkey = other_mr->lkey;
	EQ("memory of another domain", status_of(&wr, all, NULL, NULL), IBV_WC_LOC_PROT_ERR);
	sge.lkey = mr->lkey;
	sge.length = SIZE + 1;
	EQ("beyond the region", status_of(&wr, all, NULL, NULL), IBV_WC_LOC_PROT_ERR);
	sge.length = 64;
	wr.wr.rdma.rkey ^= 1;
	EQ("a wrong rkey", status_of(&wr, all, NULL, NULL), IBV_WC_REM_ACCESS_ERR);
	wr.wr.rdma.rkey = other_mr->rkey;
	EQ("the peer's other domain", status_of(&wr, all, NULL, NULL), IBV_WC_REM_ACCESS_ERR);
	wr.wr.rdma.rkey = read_only->rkey;
	wr.wr.rdma.remote_addr = (uintptr_t)read_only->addr;
	EQ("a region without the right", status_of(&wr, all, NULL, NULL), IBV_WC_REM_ACCESS_ERR);
	wr.wr.rdma.rkey = remote_mr->rkey;
	wr.wr.rdma.remote_addr = (uintptr_t)remote + SIZE - 1;
	EQ("beyond the peer's region", status_of(&wr, all, NULL, NULL), IBV_WC_REM_ACCESS_ERR);
	wr.wr.rdma.remote_addr = (uintptr_t)remote;
	EQ("a queue pair without the right", status_of(&wr, IBV_ACCESS_REMOTE_READ, NULL, NULL),
	   IBV_WC_REM_INV_REQ_ERR);
	wr.opcode = IBV_WR_RDMA_READ;
	sge.lkey = read_only->lkey;
	sge.addr = (uintptr_t)read_only->addr;
	EQ("a read into memory that is not writable", status_of(&wr, all, NULL, NULL), IBV_WC_LOC_PROT_ERR);
	sge.lkey = mr->lkey;
	sge.addr = (uintptr_t)local;
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	wr.wr.atomic.remote_addr = (uintptr_t)remote + 4;
	wr.wr.atomic.rkey = remote_mr->rkey;
	sge.length = 8;
	EQ("an atomic between two words", status_of(&wr, all, NULL, NULL), IBV_WC_REM_INV_REQ_ERR);
	wr.wr.atomic.remote_addr = (uintptr_t)remote;
	EQ("an atomic", status_of(&wr, all, NULL, NULL), IBV_WC_SUCCESS);
	EQ("an atomic without the right", status_of(&wr, IBV_ACCESS_REMOTE_WRITE, NULL, NULL),
	   IBV_WC_REM_INV_REQ_ERR);
}

static void receives(void)
{
	struct ibv_sge sge = {.addr = (uintptr_t)local, .length = 64, .lkey = mr->lkey};
	struct ibv_sge into = {.addr = (uintptr_t)remote, .length = 64, .lkey = remote_mr->lkey};
	struct ibv_send_wr wr = request(&sge, IBV_WR_SEND);
	enum ibv_wc_status received;

	EQ("a send", status_of(&wr, 0, &into, &received), IBV_WC_SUCCESS);
	EQ("is received", received, IBV_WC_SUCCESS);
	into.length = 63;
	EQ("a send that is too long", status_of(&wr, 0, &into, &received), IBV_WC_REM_INV_REQ_ERR);
	EQ("is told to the receiver", received, IBV_WC_LOC_LEN_ERR);
	into.length = 64;
	into.lkey ^= 1;
	EQ("a receive with a wrong key", status_of(&wr, 0, &into, &received), IBV_WC_REM_OP_ERR);
	EQ("is told to the receiver", received, IBV_WC_LOC_PROT_ERR);
}

/* More completions than the queue has room for. */
static void overrun(void)
{
	struct ibv_cq *small = ibv_create_cq(context, 2, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {.send_cq = small, .recv_cq = small, .qp_type = IBV_QPT_RC};
	struct end two = make_end(pd, IBV_QPT_RC, NULL), one = {.cq = small};
	struct ibv_async_event event;
	struct ibv_wc wc;
	time_t end = time(NULL) + 30;

	MUST("ibv_create_cq", small);
	TRUE("at least what was asked for", small->cqe >= 2);
	init.cap.max_send_wr = 1;
	init.cap.max_recv_wr = small->cqe + 2;
	one.qp = ibv_create_qp(pd, &init);
	MUST("ibv_create_qp", one.qp);
	MUST("to INIT", !to_init(one.qp, 0));
	for (int i = 0; i < small->cqe + 2; i++)
		MUST("ibv_post_recv", !post_recv(one.qp, NULL));
	/* All are flushed into room for two less. */
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	MUST("to ERR", !ibv_modify_qp(one.qp, &attr, IBV_QP_STATE));
	EQ("ibv_get_async_event", ibv_get_async_event(context, &event), 0);
	EQ("what happened", event.event_type, IBV_EVENT_CQ_ERR);
	TRUE("to which queue", event.element.cq == small);
	while (ibv_poll_cq(small, 1, &wc) >= 0)
		MUST("an error in time", time(NULL) < end);
	ibv_ack_async_event(&event);
	destroy_end(&one);
	destroy_end(&two);
}

static void *destroy_queue(void *cq)
{
	EQ("ibv_destroy_cq", ibv_destroy_cq(cq), 0);
	return cq;
}

/* Whoever destroys a queue waits until its events are acknowledged. */
static void events(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, &local, channel, 0), *which;
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct ibv_async_event event;
	struct ibv_qp *qp;
	pthread_t thread;
	struct timespec soon;
	void *of;

	init.cap.max_send_wr = init.cap.max_recv_wr = 8;
	MUST("a channel and a queue", channel && cq);
	MUST("O_NONBLOCK", !fcntl(channel->fd, F_SETFL, O_NONBLOCK) && !fcntl(context->async_fd, F_SETFL, O_NONBLOCK));
	errno = 0;
	EQ("no completion event", ibv_get_cq_event(channel, &which, &of), -1);
	EQ("errno", errno, EAGAIN);
	errno = 0;
	EQ("no asynchronous event", ibv_get_async_event(context, &event), -1);
	EQ("errno", errno, EAGAIN);
	MUST("blocking again", !fcntl(channel->fd, F_SETFL, 0) && !fcntl(context->async_fd, F_SETFL, 0));

	qp = ibv_create_qp(pd, &init);
	MUST("ibv_create_qp", qp);
	MUST("to INIT", !to_init(qp, 0) && !post_recv(qp, NULL));
	EQ("ibv_req_notify_cq", ibv_req_notify_cq(cq, 0), 0);
	MUST("to ERR", !ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	EQ("ibv_get_cq_event", ibv_get_cq_event(channel, &which, &of), 0);
	TRUE("which queue", which == cq && of == &local);
	EQ("flushed", wait_wc(cq).status, IBV_WC_WR_FLUSH_ERR);
	EQ("ibv_destroy_qp", ibv_destroy_qp(qp), 0);
	MUST("a thread", !pthread_create(&thread, NULL, destroy_queue, cq));
	clock_gettime(CLOCK_REALTIME, &soon);
	soon.tv_nsec += 50 * 1000 * 1000;
	soon.tv_sec += soon.tv_nsec / 1000000000;
	soon.tv_nsec %= 1000000000;
	EQ("destroying waits", pthread_timedjoin_np(thread, &of, &soon), ETIMEDOUT);
	ibv_ack_cq_events(cq, 1);
	EQ("and ends", pthread_join(thread, &of), 0);
	EQ("ibv_destroy_comp_channel", ibv_destroy_comp_channel(channel), 0);
}

/* The low watermark of a shared receive queue. */
static void limit(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_sge into = {.addr = (uintptr_t)remote, .length = 64, .lkey = remote_mr->lkey};
	struct ibv_srq_attr attr = {.srq_limit = 2};
	struct ibv_recv_wr wr = {.sg_list = &into, .num_sge = 1}, *bad;
	struct ibv_send_wr send = request(NULL, IBV_WR_SEND);
	struct ibv_async_event event;
	struct end one, two;

	MUST("ibv_create_srq", srq);
	one = make_end(pd, IBV_QPT_RC, NULL);
	two = make_end(pd, IBV_QPT_RC, srq);
	connect_ends(&one, &two, 0);
	for (int i = 0; i < 3; i++)
		MUST("ibv_post_srq_recv", !ibv_post_srq_recv(srq, &wr, &bad));
	EQ("ibv_modify_srq", ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	send.num_sge = 0;
	for (int i = 0; i < 2; i++) {
		MUST("ibv_post_send", !post(one.qp, &send));
		EQ("sent", wait_wc(one.cq).status, IBV_WC_SUCCESS);
		EQ("received", wait_wc(two.cq).status, IBV_WC_SUCCESS);
	}
	do {
		MUST("ibv_get_async_event", !ibv_get_async_event(context, &event));
		ibv_ack_async_event(&event);
	} while (event.event_type == IBV_EVENT_COMM_EST);
	EQ("what happened", event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
	TRUE("to which queue", event.element.srq == srq);
	destroy_end(&one);
	destroy_end(&two);
	EQ("ibv_destroy_srq", ibv_destroy_srq(srq), 0);
}

int main(void)
{
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

	context = open_named("roce_lo");
	pd = ibv_alloc_pd(context);
	other_pd = ibv_alloc_pd(context);
	MUST("ibv_alloc_pd", pd && other_pd);
	mr = ibv_reg_mr(pd, local, SIZE, all);
	remote_mr = ibv_reg_mr(pd, remote, SIZE, all);
	read_only = ibv_reg_mr(pd, remote, SIZE, IBV_ACCESS_REMOTE_READ);
	other_mr = ibv_reg_mr(other_pd, local, SIZE, all);
	MUST("ibv_reg_mr", mr && remote_mr && read_only && other_mr);
	overrun();
	events();
	keys_and_rights();
	receives();
	limit();
	return failures != 0;
}
