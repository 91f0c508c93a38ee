/* What a program does wrong, and how it is told: errno and return value as the manual pages say. */
#include "check.h"

static void tables(struct ibv_context *context)
{
	struct ibv_port_attr port;
	struct ibv_gid_entry entries[1];
	union ibv_gid gid;
	__be16 pkey;

	EQ("ibv_query_port of port 2", ibv_query_port(context, 2, &port), EINVAL);
	EQ("ibv_query_port", ibv_query_port(context, 1, &port), 0);
	EQ("ibv_query_gid behind the end", ibv_query_gid(context, 1, port.gid_tbl_len, &gid), -1);
	EQ("ibv_query_gid of port 2", ibv_query_gid(context, 2, 0, &gid), -1);
	EQ("ibv_query_pkey behind the end", ibv_query_pkey(context, 1, 1, &pkey), -1);
	EQ("ibv_query_pkey", ibv_query_pkey(context, 1, 0, &pkey), 0);
	EQ("ibv_get_pkey_index", ibv_get_pkey_index(context, 1, pkey), 0);
	EQ("ibv_get_pkey_index of none", ibv_get_pkey_index(context, 1, 0x1234), -1);
	if (port.gid_tbl_len > 1)
		EQ("ibv_query_gid_table of a short table", ibv_query_gid_table(context, entries, 1, 0), -EINVAL);
	EQ("ibv_query_gid_ex with flags", ibv_query_gid_ex(context, 1, 0, entries, 1), EINVAL);
}

static void completion_queues(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq_init_attr_ex ex = {.cqe = 4, .wc_flags = IBV_WC_EX_WITH_FLOW_TAG};
	struct ibv_cq *cq;

	MUST("ibv_create_comp_channel", channel);
	REFUSED("a queue of 0 entries", ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	REFUSED("a queue of -1 entries", ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
	REFUSED("a queue of 2^30 entries", ibv_create_cq(context, 1 << 30, NULL, NULL, 0), EINVAL);
	REFUSED("a wrong vector", ibv_create_cq(context, 4, NULL, NULL, context->num_comp_vectors), EINVAL);
	REFUSED("flow tags", ibv_create_cq_ex(context, &ex), EOPNOTSUPP);
	cq = ibv_create_cq(context, 4, NULL, channel, 0);
	MUST("ibv_create_cq", cq);
	EQ("a channel that is used", ibv_destroy_comp_channel(channel), EBUSY);
	EQ("ibv_destroy_cq", ibv_destroy_cq(cq), 0);
	EQ("ibv_destroy_comp_channel", ibv_destroy_comp_channel(channel), 0);
}

static void regions(struct ibv_pd *pd)
{
	static char memory[64];
	struct ibv_mr *mr;
	/* Not constant, so that the headers take the newer call. */
	volatile int access = IBV_ACCESS_REMOTE_WRITE;

	REFUSED("remote without local write", ibv_reg_mr(pd, memory, 64, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	REFUSED("the same, the newer way", ibv_reg_mr(pd, memory, 64, access), EINVAL);
	REFUSED("on demand", ibv_reg_mr(pd, memory, 64, IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
	REFUSED("a range that wraps", ibv_reg_mr(pd, memory, SIZE_MAX - 4, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
	mr = ibv_reg_mr(pd, memory, 64, access);
	MUST("relaxed ordering may be ignored", mr);
	TRUE("addr and length", mr->addr == memory && mr->length == 64 && mr->pd == pd);
	EQ("a domain that is used", ibv_dealloc_pd(pd), EBUSY);
	EQ("ibv_dereg_mr", ibv_dereg_mr(mr), 0);
	REFUSED("ibv_reg_dmabuf_mr", ibv_reg_dmabuf_mr(pd, 0, 64, 0, 0, IBV_ACCESS_LOCAL_WRITE), EOPNOTSUPP);
}

static void queue_pairs(struct ibv_pd *pd)
{
	struct ibv_cq *cq = ibv_create_cq(pd->context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
	struct ibv_qp_init_attr_ex ex = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd};
	struct ibv_qp_attr modify = {.qp_state = IBV_QPS_RTR};
	struct ibv_qp *qp;

	attr.cap.max_send_wr = attr.cap.max_recv_wr = 2;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	ex.cap = attr.cap;
	attr.cap.max_send_sge = 1000;
	REFUSED("1000 entries", ibv_create_qp(pd, &attr), EINVAL);
	attr.cap.max_send_sge = 1;
	attr.qp_type = IBV_QPT_RAW_PACKET;
	REFUSED("raw packets", ibv_create_qp(pd, &attr), EOPNOTSUPP);
	attr.qp_type = IBV_QPT_RC;
	attr.send_cq = NULL;
	REFUSED("no queue", ibv_create_qp(pd, &attr), EINVAL);
	attr.send_cq = cq;
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	ex.send_ops_flags = IBV_QP_EX_WITH_TSO;
	REFUSED("segmentation offload", ibv_create_qp_ex(pd->context, &ex), EOPNOTSUPP);
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH;
	REFUSED("a hash", ibv_create_qp_ex(pd->context, &ex), EOPNOTSUPP);

	qp = ibv_create_qp(pd, &attr);
	MUST("ibv_create_qp", qp);
	EQ("state", qp->state, IBV_QPS_RESET);
	EQ("a queue that is used", ibv_destroy_cq(cq), EBUSY);
	REFUSED("a plain one as extended", ibv_qp_to_qp_ex(qp), EOPNOTSUPP);
	EQ("RESET to RTR", ibv_modify_qp(qp, &modify, IBV_QP_STATE), EINVAL);
	modify.qp_state = 99;
	EQ("to no state", ibv_modify_qp(qp, &modify, IBV_QP_STATE), EINVAL);
	modify.qp_state = IBV_QPS_INIT;
	EQ("to INIT without attributes", ibv_modify_qp(qp, &modify, IBV_QP_STATE), EINVAL);
	modify.port_num = 2;
	EQ("to INIT on port 2",
	   ibv_modify_qp(qp, &modify, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	   EINVAL);
	EQ("state is as before", qp->state, IBV_QPS_RESET);
	EQ("receive in RESET", post_recv(qp, NULL), EINVAL);
	EQ("to INIT", to_init(qp, 0), 0);
	EQ("state", qp->state, IBV_QPS_INIT);
	modify.qp_state = IBV_QPS_RTR;
	modify.path_mtu = IBV_MTU_1024;
	modify.ah_attr.port_num = 1;
	EQ("an address without GRH",
	   ibv_modify_qp(qp, &modify,
			 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
	   EINVAL);
	EQ("to RTR", to_rtr(qp, qp->qp_num), 0);
	EQ("ibv_destroy_qp", ibv_destroy_qp(qp), 0);
	EQ("ibv_destroy_cq", ibv_destroy_cq(cq), 0);
}

static void posting(struct ibv_pd *pd)
{
	struct end end = make_end(pd, IBV_QPT_RC, NULL);
	struct ibv_sge sges[3] = {{0}};
	struct ibv_send_wr wrs[20] = {{0}}, *bad = NULL;
	struct ibv_recv_wr rwrs[10] = {{0}}, *rbad = NULL;

	for (int i = 0; i < 20; i++) {
		wrs[i].opcode = IBV_WR_SEND;
		wrs[i].next = i < 19 ? &wrs[i + 1] : NULL;
	}
	for (int i = 0; i < 10; i++)
		rwrs[i].next = i < 9 ? &rwrs[i + 1] : NULL;
	EQ("send in RESET", ibv_post_send(end.qp, wrs, &bad), EINVAL);
	TRUE("the first one is bad", bad == &wrs[0]);
	MUST("to INIT", !to_init(end.qp, 0));
	EQ("send in INIT", ibv_post_send(end.qp, wrs, &bad), EINVAL);
	EQ("10 receives in a queue of 8", ibv_post_recv(end.qp, rwrs, &rbad), ENOMEM);
	TRUE("the ninth is bad", rbad == &rwrs[8]);
	MUST("to RTR", !to_rtr(end.qp, end.qp->qp_num + 1));
	MUST("to RTS", !to_rts(end.qp));
	wrs[1].sg_list = sges;
	wrs[1].num_sge = 3;
	EQ("3 entries of 2", ibv_post_send(end.qp, wrs, &bad), EINVAL);
	TRUE("the second is bad", bad == &wrs[1]);
	wrs[1].num_sge = -1;
	EQ("-1 entries", ibv_post_send(end.qp, &wrs[1], &bad), EINVAL);
	wrs[1].num_sge = 1;
	wrs[1].send_flags = IBV_SEND_INLINE;
	sges[0].addr = (uintptr_t)wrs;
	sges[0].length = 65;
	EQ("65 octets inline of 64", ibv_post_send(end.qp, &wrs[1], &bad), EINVAL);
	wrs[1].send_flags = 0;
	wrs[1].num_sge = 0;
	wrs[1].opcode = IBV_WR_TSO;
	EQ("an operation that is not supported", ibv_post_send(end.qp, &wrs[1], &bad), EOPNOTSUPP);
	wrs[1].opcode = IBV_WR_SEND;
	/* One was posted above. */
	EQ("20 more sends than fit", ibv_post_send(end.qp, wrs, &bad), ENOMEM);
	TRUE("which one is bad", bad == &wrs[end.room - 1]);
	destroy_end(&end);
}

static void addresses(struct ibv_pd *pd)
{
	struct ibv_ah_attr attr = {.port_num = 1};
	struct ibv_wc wc = {0};
	struct ibv_grh grh = {0};
	struct ibv_ah *ah;

	REFUSED("an address without GRH", ibv_create_ah(pd, &attr), EINVAL);
	attr.is_global = 1;
	REFUSED("an address of zeros", ibv_create_ah(pd, &attr), EINVAL);
	MUST("ibv_query_gid", !ibv_query_gid(pd->context, 1, 0, &attr.grh.dgid));
	attr.grh.sgid_index = 200;
	REFUSED("from entry 200", ibv_create_ah(pd, &attr), EINVAL);
	attr.grh.sgid_index = 0;
	attr.port_num = 2;
	REFUSED("from port 2", ibv_create_ah(pd, &attr), EINVAL);
	attr.port_num = 1;
	ah = ibv_create_ah(pd, &attr);
	MUST("ibv_create_ah", ah);
	EQ("a domain that is used", ibv_dealloc_pd(pd), EBUSY);
	EQ("ibv_destroy_ah", ibv_destroy_ah(ah), 0);
	REFUSED("back to where there is no GRH", ibv_create_ah_from_wc(pd, &wc, &grh, 1), EINVAL);
}

static void shared_receives(struct ibv_pd *pd)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 2, .max_sge = 1}};
	struct ibv_srq_attr attr = {.srq_limit = 3};
	struct ibv_recv_wr wrs[3] = {{0}}, *bad = NULL;
	struct ibv_srq *srq;
	struct end end;

	init.attr.max_wr = 0;
	REFUSED("a queue for none", ibv_create_srq(pd, &init), EINVAL);
	init.attr.max_wr = 2;
	srq = ibv_create_srq(pd, &init);
	MUST("ibv_create_srq", srq);
	end = make_end(pd, IBV_QPT_RC, srq);
	EQ("a queue that is used", ibv_destroy_srq(srq), EBUSY);
	MUST("to INIT", !to_init(end.qp, 0));
	EQ("a receive for a queue pair that shares", post_recv(end.qp, NULL), EINVAL);
	EQ("a limit above the size", ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), EINVAL);
	EQ("what there is not", ibv_modify_srq(srq, &attr, 1 << 7), EINVAL);
	wrs[0].next = &wrs[1];
	wrs[1].next = &wrs[2];
	EQ("3 receives in a queue of 2", ibv_post_srq_recv(srq, wrs, &bad), ENOMEM);
	TRUE("the third is bad", bad == &wrs[2]);
	EQ("ibv_query_srq", ibv_query_srq(srq, &attr), 0);
	EQ("max_wr", attr.max_wr, 2);
	destroy_end(&end);
	EQ("ibv_destroy_srq", ibv_destroy_srq(srq), 0);
}

int main(void)
{
	struct ibv_context *context = open_named("roce_lo");
	struct ibv_pd *pd = ibv_alloc_pd(context);

	MUST("ibv_alloc_pd", pd);
	tables(context);
	completion_queues(context);
	regions(pd);
	queue_pairs(pd);
	posting(pd);
	addresses(pd);
	shared_receives(pd);
	REFUSED("ibv_import_pd", ibv_import_pd(context, 1), EOPNOTSUPP);
	EQ("ibv_dealloc_pd", ibv_dealloc_pd(pd), 0);
	EQ("ibv_close_device", ibv_close_device(context), 0);
	return failures != 0;
}
