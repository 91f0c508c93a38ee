/* Objects that change: regions that are registered again or under other addresses, windows, queues that
 * grow, domains made of others, extended completion queues and queue pairs. */
#include "check.h"

enum { SIZE = 4096 };

static char local[SIZE], remote[SIZE], elsewhere[SIZE];
static struct ibv_context *context;
static struct ibv_pd *pd;
static const int ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		       IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

static struct end one, two;

static void connect_anew(void)
{
	if (one.qp) {
		destroy_end(&one);
		destroy_end(&two);
	}
	one = make_end(pd, IBV_QPT_RC, NULL);
	two = make_end(pd, IBV_QPT_RC, NULL);
	connect_ends(&one, &two, ALL);
}

/* Writes 8 octets to the peer; the status. */
static enum ibv_wc_status write8(struct ibv_mr *from, uint64_t addr, uint32_t rkey, uint64_t remote_addr)
{
	struct ibv_sge sge = {.addr = addr, .length = 8, .lkey = from->lkey};
	struct ibv_send_wr wr = request(&sge, IBV_WR_RDMA_WRITE);
	enum ibv_wc_status status;

	wr.wr.rdma.remote_addr = remote_addr;
	wr.wr.rdma.rkey = rkey;
	MUST("ibv_post_send", !post(one.qp, &wr));
	status = wait_wc(one.cq).status;
	if (status != IBV_WC_SUCCESS)
		connect_anew();
	return status;
}

static void other_addresses(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, local, SIZE, ALL);
	struct ibv_mr *shifted = ibv_reg_mr_iova(pd, remote, SIZE, 0x10000, ALL);
	struct ibv_mr *zero = ibv_reg_mr(pd, remote, SIZE, ALL | IBV_ACCESS_ZERO_BASED);
	volatile int access = ALL;
	struct ibv_mr *newer = ibv_reg_mr_iova(pd, remote, SIZE, 0x20000, access);

	MUST("four regions", mr && shifted && zero && newer);
	memcpy(local, "shifted!", 8);
	EQ("to an address of its own", write8(mr, (uintptr_t)local, shifted->rkey, 0x10008), IBV_WC_SUCCESS);
	TRUE("is there", !memcmp(remote + 8, "shifted!", 8));
	EQ("to the memory's address", write8(mr, (uintptr_t)local, shifted->rkey, (uintptr_t)remote),
	   IBV_WC_REM_ACCESS_ERR);
	memcpy(local, "zero....", 8);
	EQ("from zero", write8(mr, (uintptr_t)local, zero->rkey, 16), IBV_WC_SUCCESS);
	TRUE("is there", !memcmp(remote + 16, "zero....", 8));
	EQ("the newer call", write8(mr, (uintptr_t)local, newer->rkey, 0x20018), IBV_WC_SUCCESS);
	TRUE("is there", !memcmp(remote + 24, "zero....", 8));
	EQ("ibv_dereg_mr", ibv_dereg_mr(shifted) + ibv_dereg_mr(zero) + ibv_dereg_mr(newer), 0);
	EQ("after that", write8(mr, (uintptr_t)local, newer->rkey, 0x20018), IBV_WC_REM_ACCESS_ERR);
	EQ("ibv_dereg_mr", ibv_dereg_mr(mr), 0);
}

static void registered_again(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, local, SIZE, ALL), *target = ibv_reg_mr(pd, remote, SIZE, ALL);
	struct ibv_pd *other = ibv_alloc_pd(context);
	uint32_t rkey = target->rkey;

	EQ("nothing", ibv_rereg_mr(target, 0, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	EQ("no memory", ibv_rereg_mr(target, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	EQ("errno", errno, EINVAL);
	EQ("other memory", ibv_rereg_mr(target, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, elsewhere, SIZE, 0), 0);
	TRUE("addr", target->addr == elsewhere && target->rkey == rkey);
	memcpy(local, "moved...", 8);
	EQ("a write there", write8(mr, (uintptr_t)local, rkey, (uintptr_t)elsewhere), IBV_WC_SUCCESS);
	TRUE("is there", !memcmp(elsewhere, "moved...", 8));
	EQ("other rights", ibv_rereg_mr(target, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_READ), 0);
	EQ("a write without", write8(mr, (uintptr_t)local, rkey, (uintptr_t)elsewhere), IBV_WC_REM_ACCESS_ERR);
	EQ("another domain", ibv_rereg_mr(target, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS, other, NULL, 0, ALL), 0);
	TRUE("pd", target->pd == other);
	EQ("which is used now", ibv_dealloc_pd(other), EBUSY);
	EQ("a write there", write8(mr, (uintptr_t)local, rkey, (uintptr_t)elsewhere), IBV_WC_REM_ACCESS_ERR);
	EQ("ibv_dereg_mr", ibv_dereg_mr(mr) + ibv_dereg_mr(target), 0);
	EQ("ibv_dealloc_pd", ibv_dealloc_pd(other), 0);
}

static void windows(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, local, SIZE, ALL), *target = ibv_reg_mr(pd, remote, SIZE, ALL);
	struct ibv_mw *first = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *second = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_mw_bind bind = {.wr_id = 5, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_wc wc;
	uint32_t old;

	MUST("regions and windows", mr && target && first && second);
	bind.bind_info.mr = target;
	bind.bind_info.addr = (uintptr_t)remote + 64;
	bind.bind_info.length = 64;
	bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
	old = first->rkey;
	EQ("ibv_bind_mw", ibv_bind_mw(two.qp, first, &bind), 0);
	TRUE("another key", first->rkey != old);
	wc = wait_wc(two.cq);
	EQ("bound", wc.status, IBV_WC_SUCCESS);
	EQ("opcode", wc.opcode, IBV_WC_BIND_MW);
	EQ("wr_id", wc.wr_id, 5);
	EQ("a region that is bound to", ibv_dereg_mr(target), EBUSY);
	memcpy(local, "window.1", 8);
	EQ("through it", write8(mr, (uintptr_t)local, first->rkey, (uintptr_t)remote + 64), IBV_WC_SUCCESS);
	TRUE("is there", !memcmp(remote + 64, "window.1", 8));
	EQ("beside it", write8(mr, (uintptr_t)local, first->rkey, (uintptr_t)remote + 60), IBV_WC_REM_ACCESS_ERR);

	wr.bind_mw.mw = second;
	wr.bind_mw.rkey = ibv_inc_rkey(second->rkey);
	wr.bind_mw.bind_info = bind.bind_info;
	MUST("ibv_post_send", !post(two.qp, &wr));
	EQ("bound", wait_wc(two.cq).status, IBV_WC_SUCCESS);
	memcpy(local, "window.2", 8);
	EQ("through it", write8(mr, (uintptr_t)local, wr.bind_mw.rkey, (uintptr_t)remote + 72), IBV_WC_SUCCESS);
	TRUE("is there", !memcmp(remote + 72, "window.2", 8));
	/* The peer makes the key invalid. */
	struct ibv_send_wr inv = {.opcode = IBV_WR_SEND_WITH_INV, .send_flags = IBV_SEND_SIGNALED};
	inv.invalidate_rkey = wr.bind_mw.rkey;
	MUST("ibv_post_recv", !post_recv(two.qp, NULL));
	MUST("ibv_post_send", !post(one.qp, &inv));
	EQ("sent", wait_wc(one.cq).status, IBV_WC_SUCCESS);
	wc = wait_wc(two.cq);
	TRUE("received with its key", wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == wr.bind_mw.rkey);
	EQ("through it", write8(mr, (uintptr_t)local, wr.bind_mw.rkey, (uintptr_t)remote + 72), IBV_WC_REM_ACCESS_ERR);
	EQ("a window of no type", !ibv_alloc_mw(pd, 7), 1);
	EQ("ibv_dealloc_mw", ibv_dealloc_mw(first) + ibv_dealloc_mw(second), 0);
	EQ("ibv_dereg_mr", ibv_dereg_mr(mr) + ibv_dereg_mr(target), 0);
}

static void sizes(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 2, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_srq_attr attr = {.max_wr = 5};

	MUST("a queue of each kind", cq && srq);
	EQ("ibv_resize_cq", ibv_resize_cq(cq, 1000), 0);
	EQ("cqe", cq->cqe, 1000);
	EQ("to nothing", ibv_resize_cq(cq, 0), EINVAL);
	EQ("ibv_modify_srq", ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), 0);
	EQ("ibv_query_srq", ibv_query_srq(srq, &attr), 0);
	EQ("max_wr", attr.max_wr, 5);
	EQ("destroyed", ibv_destroy_cq(cq) + ibv_destroy_srq(srq), 0);
}

static void domains(void)
{
	struct ibv_td_init_attr none = {0};
	struct ibv_td *td = ibv_alloc_td(context, &none);
	struct ibv_parent_domain_init_attr attr = {.pd = pd, .td = td};
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
	struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
	struct ibv_device_attr_ex device;
	struct ibv_mr *mr;

	MUST("two domains", td && parent);
	EQ("one that is used", ibv_dealloc_td(td), EBUSY);
	mr = ibv_reg_mr(parent, local, SIZE, ALL);
	MUST("ibv_reg_mr", mr);
	EQ("one that is used", ibv_dealloc_pd(parent), EBUSY);
	EQ("of the parent in the child's queue pair", write8(mr, (uintptr_t)local, mr->rkey, (uintptr_t)local), IBV_WC_SUCCESS);
	EQ("gone", ibv_dereg_mr(mr) + ibv_dealloc_pd(parent) + ibv_dealloc_td(td), 0);
	EQ("ibv_query_rt_values_ex", ibv_query_rt_values_ex(context, &values), 0);
	TRUE("a clock", values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK && values.raw_clock.tv_sec > 0);
	EQ("ibv_query_device_ex", ibv_query_device_ex(context, NULL, &device), 0);
	TRUE("timestamps", device.completion_timestamp_mask && device.hca_core_clock);
	TRUE("no memory of the device", !ibv_alloc_dm(context, &(struct ibv_alloc_dm_attr){.length = 64}));
	EQ("why not", errno, EOPNOTSUPP);
}

static void extended(void)
{
	struct ibv_cq_init_attr_ex cq_attr = {
		.cqe = 16,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &cq_attr);
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = ibv_cq_ex_to_cq(cq),
		.recv_cq = ibv_cq_ex_to_cq(cq),
		.cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64},
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
				  IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
	};
	struct end ex = {.cq = ibv_cq_ex_to_cq(cq)}, peer = make_end(pd, IBV_QPT_RC, NULL);
	struct ibv_mr *mr = ibv_reg_mr(pd, local, SIZE, ALL), *target = ibv_reg_mr(pd, remote, SIZE, ALL);
	struct ibv_sge into = {.addr = (uintptr_t)remote, .length = 64, .lkey = target->lkey};
	struct ibv_poll_cq_attr poll = {0};
	struct ibv_data_buf bufs[2] = {{"in", 2}, {"line", 4}};
	struct ibv_qp_ex *qp;
	struct ibv_wc wc;
	uint64_t word = 40, before;
	time_t end = time(NULL) + 30;
	int result;

	MUST("ibv_create_cq_ex", cq);
	ex.qp = ibv_create_qp_ex(context, &attr);
	MUST("ibv_create_qp_ex", ex.qp);
	qp = ibv_qp_to_qp_ex(ex.qp);
	MUST("ibv_qp_to_qp_ex", qp);
	connect_ends(&ex, &peer, ALL);
	EQ("empty", ibv_start_poll(cq, &poll), ENOENT);

	MUST("ibv_post_recv", !post_recv(peer.qp, &into) && !post_recv(peer.qp, &into));
	memcpy(local, "in pieces", 9);
	memcpy(remote + 1024, &word, 8);
	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = 0;
	ibv_wr_send(qp);
	ibv_wr_set_inline_data_list(qp, 2, bufs);
	qp->wr_id = 2;
	ibv_wr_send_imm(qp, htobe32(0x12345678));
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)local, 9);
	qp->wr_id = 3;
	ibv_wr_rdma_write(qp, target->rkey, (uintptr_t)remote + 512);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)local, 9);
	qp->wr_id = 4;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_fetch_add(qp, target->rkey, (uintptr_t)remote + 1024, 2);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)local + 64, 8);
	EQ("ibv_wr_complete", ibv_wr_complete(qp), 0);

	wc = wait_wc(peer.cq);
	TRUE("inline", wc.byte_len == 6 && !(wc.wc_flags & IBV_WC_WITH_IMM));
	wc = wait_wc(peer.cq);
	TRUE("immediate", wc.byte_len == 9 && wc.wc_flags & IBV_WC_WITH_IMM && be32toh(wc.imm_data) == 0x12345678);
	TRUE("received", !memcmp(remote, "in pieces", 9));
	while ((result = ibv_start_poll(cq, &poll)) == ENOENT)
		MUST("a completion in time", time(NULL) < end);
	EQ("ibv_start_poll", result, 0);
	TRUE("the last one only", cq->wr_id == 4 && cq->status == IBV_WC_SUCCESS);
	TRUE("read_opcode", ibv_wc_read_opcode(cq) == IBV_WC_FETCH_ADD);
	TRUE("read_qp_num", ibv_wc_read_qp_num(cq) == ex.qp->qp_num);
	TRUE("read_completion_ts", ibv_wc_read_completion_ts(cq));
	/* Posting is allowed in between. */
	EQ("ibv_post_recv", post_recv(ex.qp, NULL), 0);
	EQ("ibv_next_poll", ibv_next_poll(cq), ENOENT);
	ibv_end_poll(cq);
	TRUE("written", !memcmp(remote + 512, "in pieces", 9));
	memcpy(&word, remote + 1024, 8);
	memcpy(&before, local + 64, 8);
	TRUE("added", word == 42 && before == 40);

	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, local, 65);
	EQ("too much inline", ibv_wr_complete(qp), EINVAL);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_abort(qp);
	EQ("aborted", ibv_start_poll(cq, &poll), ENOENT);
	destroy_end(&ex);
	destroy_end(&peer);
	EQ("ibv_dereg_mr", ibv_dereg_mr(mr) + ibv_dereg_mr(target), 0);
}

int main(void)
{
	context = open_named("roce_lo");
	pd = ibv_alloc_pd(context);
	MUST("ibv_alloc_pd", pd);
	connect_anew();
	other_addresses();
	registered_again();
	windows();
	sizes();
	domains();
	extended();
	destroy_end(&one);
	destroy_end(&two);
	EQ("ibv_dealloc_pd", ibv_dealloc_pd(pd), 0);
	EQ("ibv_close_device", ibv_close_device(context), 0);
	return failures != 0;
}
