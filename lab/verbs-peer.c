/*
 * Every operation of RC, UC and UD queue pairs between the kernel's driver and another program,
 * in both directions, with the data checked at both ends. lab/interop compiles it, runs it in a
 * guest and crates/cli/examples/verbs_peer.rs, which does the same step by step, on our side.
 *
 *   verbs-peer [-c HOST] -b ADDRESS [-p PORT] [-t rc|uc|ud] [-m MTU] [-s SIZE,SIZE,...] [-e] [-w]
 *
 * -c connects to HOST, otherwise it listens; -b is the own address on the RDMA device; -e provokes
 * errors instead; -w writes until it fails (the end with -w), the other end waits to be killed.
 * Queue pairs are connected by hand, by an exchange over TCP, which also keeps the ends in step.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LARGEST = 8 << 20, GRH = 40, CHUNKS = 16, QKEY = 0x11111111, SECONDS = 60 };
enum op { SEND, SEND_IMM, SEND_INV, WRITE, WRITE_IMM, READ, CAS, FADD, PIPE, OPS };
static const char *const op_names[OPS] = {
    "send", "send-imm", "send-inv", "write", "write-imm", "read", "compare-swap", "fetch-add", "pipe",
};
enum failure { BAD_KEY, OUT_OF_BOUNDS, NO_PERMISSION, READ_BAD_KEY, ATOMIC_MISALIGNED, TOO_LONG, NO_RECEIVE, FAILURES };
static const char *const failure_names[FAILURES] = {
    "bad-key", "out-of-bounds", "no-permission", "read-bad-key", "atomic-misaligned", "too-long", "no-receive",
};

static bool client, errors, writes, endless;
static enum ibv_qp_type type = IBV_QPT_RC;
static enum ibv_mtu mtu = IBV_MTU_1024;
static int mtu_octets = 1024, control, gid_index;
static union ibv_gid gid;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *send_cq, *recv_cq;
static struct ibv_qp *qp;
static struct ibv_mr *source, *target, *read_only; /* what is sent from here; what the peer reaches */
static struct ibv_ah *ah;
static uint32_t seed;
static struct { uint32_t qpn, psn, rkey, read_only; uint64_t addr; union ibv_gid gid; } peer;

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    printf("FAILED: ");
    vprintf(format, list);
    printf("\n");
    exit(1);
}
#define CHECK(condition, ...) do { if (!(condition)) fail(__VA_ARGS__); } while (0)

/* The exchange: each end says a line of 128 octets and reads the other's. */
static void swap(const char *mine, char *theirs)
{
    char line[128] = {0};
    strncpy(line, mine, sizeof line - 1);
    CHECK(write(control, line, sizeof line) == sizeof line, "exchange: cannot write");
    for (size_t have = 0; have < sizeof line;) {
        ssize_t n = read(control, theirs + have, sizeof line - have);
        CHECK(n > 0, "exchange: the peer has gone");
        have += n;
    }
}
static uint32_t barrier(uint32_t word) /* each end tells a number */
{
    char mine[128], theirs[128];
    unsigned number;
    snprintf(mine, sizeof mine, "%08x %08x", seed, word);
    swap(mine, theirs);
    unsigned at;
    CHECK(sscanf(theirs, "%x %x", &at, &number) == 2 && at == seed, "exchange: out of step: %s, not %s", theirs, mine);
    return number;
}

static void to_gid(const char *text, union ibv_gid *out)
{
    struct in_addr v4;
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, text, &v4) == 1) {
        out->raw[10] = out->raw[11] = 0xff;
        memcpy(out->raw + 12, &v4, 4);
    } else {
        CHECK(inet_pton(AF_INET6, text, out) == 1, "not an address: %s", text);
    }
}

static void connect_control(const char *host, const char *address, int port)
{
    union ibv_gid at;
    struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    int one = 1, s = socket(AF_INET6, SOCK_STREAM, 0);
    (void)address;
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (host) {
        to_gid(host, &at);
        memcpy(&sa.sin6_addr, &at, 16);
        for (int i = 0; connect(s, (struct sockaddr *)&sa, sizeof sa) != 0; i++) {
            CHECK(i < 100, "exchange: cannot connect to %s", host);
            usleep(100000);
        }
        control = s;
    } else {
        CHECK(bind(s, (struct sockaddr *)&sa, sizeof sa) == 0 && listen(s, 1) == 0, "exchange: cannot listen on %d", port);
        control = accept(s, NULL, NULL);
        close(s);
    }
}

static void open_device(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_port_attr port;
    CHECK(list && list[0], "no RDMA device");
    context = ibv_open_device(list[0]);
    CHECK(context && ibv_query_port(context, 1, &port) == 0, "cannot open the device");
    CHECK(port.active_mtu >= mtu, "the port's MTU is %d, not %d", 128 << port.active_mtu, mtu_octets);
    for (gid_index = 0; gid_index < port.gid_tbl_len; gid_index++) {
        struct ibv_gid_entry entry;
        if (ibv_query_gid_ex(context, 1, gid_index, &entry, 0) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2 &&
            memcmp(&entry.gid, &gid, sizeof gid) == 0)
            break;
    }
    CHECK(gid_index < port.gid_tbl_len, "the device does not have that address");
    pd = ibv_alloc_pd(context);
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
    source = ibv_reg_mr(pd, calloc(1, LARGEST + GRH), LARGEST + GRH, IBV_ACCESS_LOCAL_WRITE);
    target = ibv_reg_mr(pd, calloc(1, LARGEST + GRH), LARGEST + GRH, all);
    read_only = ibv_reg_mr(pd, target->addr, LARGEST, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    CHECK(source && target && read_only, "cannot register memory");
}

static void connect_qp(int rnr_retry)
{
    send_cq = ibv_create_cq(context, 256, NULL, NULL, 0);
    recv_cq = ibv_create_cq(context, 256, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = send_cq, .recv_cq = recv_cq, .qp_type = type,
        .cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 4, .max_recv_sge = 4},
    };
    qp = ibv_create_qp(pd, &init);
    CHECK(qp, "cannot create a queue pair");
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
    };
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    CHECK(ibv_modify_qp(qp, &attr, mask | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)) == 0, "to INIT");

    uint32_t psn = (qp->qp_num * 2654435761u) & 0xffffff;
    char mine[128], theirs[128], hex[33];
    for (int i = 0; i < 16; i++)
        sprintf(hex + 2 * i, "%02x", gid.raw[i]);
    snprintf(mine, sizeof mine, "%06x %06x %s %016llx %08x %08x", qp->qp_num, psn, hex,
             (unsigned long long)(uintptr_t)target->addr, target->rkey, read_only->rkey);
    swap(mine, theirs);
    unsigned long long addr;
    CHECK(sscanf(theirs, "%x %x %32s %llx %x %x", &peer.qpn, &peer.psn, hex, &addr, &peer.rkey, &peer.read_only) == 6, "exchange: %s", theirs);
    peer.addr = addr;
    for (int i = 0; i < 16; i++) {
        unsigned octet;
        sscanf(hex + 2 * i, "%2x", &octet);
        peer.gid.raw[i] = octet;
    }

    struct ibv_ah_attr way = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer.gid, .sgid_index = gid_index, .hop_limit = 64}};
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = peer.qpn, .rq_psn = peer.psn,
        .max_dest_rd_atomic = 8, .min_rnr_timer = 12, .ah_attr = way,
    };
    mask = IBV_QP_STATE;
    if (type != IBV_QPT_UD)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (type == IBV_QPT_RC)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    CHECK(ibv_modify_qp(qp, &rtr, mask) == 0, "to RTR");
    // 7 means "for ever" to rxe, which one that waits for a peer's end must not want. It counts retries
    // down although parts of a message get through, so that those with losses need it.
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = 16, .retry_cnt = endless ? 6 : 7, .rnr_retry = rnr_retry, .max_rd_atomic = 8,
    };
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (type == IBV_QPT_RC)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK(ibv_modify_qp(qp, &rts, mask) == 0, "to RTS");
    if (type == IBV_QPT_UD)
        CHECK((ah = ibv_create_ah(pd, &way)), "cannot create an address handle");
    barrier(0);
}
static void close_qp(void)
{
    ibv_destroy_qp(qp);
    ibv_destroy_cq(send_cq);
    ibv_destroy_cq(recv_cq);
}

/* Data. */
static uint8_t octet(uint32_t of, size_t i) { return (uint8_t)(of * 131 + i * 7 + (i >> 8) * 13); }
static void fill(struct ibv_mr *mr, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)mr->addr)[i] = octet(seed, i);
}
static void verify(struct ibv_mr *mr, size_t skip, size_t size, const char *what)
{
    uint8_t *data = (uint8_t *)mr->addr + skip;
    for (size_t i = 0; i < size; i++)
        CHECK(data[i] == octet(seed, i), "%s of %zu: octet %zu is %02x, not %02x", what, size, i, data[i], octet(seed, i));
    CHECK(data[size] == 0xee, "%s of %zu: wrote beyond its end", what, size);
}
static bool arrived(size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (((volatile uint8_t *)target->addr)[i] != octet(seed, i))
            return false;
    return true;
}
static uint64_t word(uint32_t n) { return 0x0123456789abcdefull * (seed * 8 + n + 1); }
static void put(struct ibv_mr *mr, uint64_t value) { memcpy(mr->addr, &value, 8); }
static uint64_t get(struct ibv_mr *mr) { uint64_t v; memcpy(&v, mr->addr, 8); return v; }

/* Requests. */
static void post_recv(size_t at, size_t size)
{
    struct ibv_sge sge = {(uintptr_t)target->addr + at, size, target->lkey};
    struct ibv_recv_wr *bad, wr = {.sg_list = &sge, .num_sge = size ? 1 : 0};
    CHECK(ibv_post_recv(qp, &wr, &bad) == 0, "post_recv");
}
static void post(struct ibv_send_wr *wr, size_t at, size_t size)
{
    /* In two pieces, where there are two octets. */
    size_t first = size / 2;
    struct ibv_sge sges[2] = {
        {(uintptr_t)source->addr + at, first ? first : size, source->lkey},
        {(uintptr_t)source->addr + at + first, size - first, source->lkey},
    };
    bool atomic = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    struct ibv_send_wr *bad;
    if (atomic)
        sges[0].length = 8;
    wr->sg_list = sges;
    wr->num_sge = size == 0 ? 0 : atomic || !first ? 1 : 2;
    if (type == IBV_QPT_UD) {
        wr->wr.ud.ah = ah;
        wr->wr.ud.remote_qpn = peer.qpn;
        wr->wr.ud.remote_qkey = QKEY;
    }
    CHECK(ibv_post_send(qp, wr, &bad) == 0, "post_send");
}
static struct ibv_wc complete(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    time_t end = time(NULL) + SECONDS;
    while (ibv_poll_cq(cq, 1, &wc) == 0)
        CHECK(time(NULL) < end, "no completion in %d s", SECONDS);
    return wc;
}
static struct ibv_wc complete_well(struct ibv_cq *cq, const char *what)
{
    struct ibv_wc wc = complete(cq);
    CHECK(wc.status == IBV_WC_SUCCESS, "%s: %s", what, ibv_wc_status_str(wc.status));
    return wc;
}

/* A memory window: the one thing of user space that the driver lets a peer invalidate. */
static struct ibv_mw *window;
static uint32_t bind_window(size_t size)
{
    window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    CHECK(window, "cannot make a memory window");
    struct ibv_send_wr *bad, wr = {
        .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
        .bind_mw = {.mw = window, .rkey = ibv_inc_rkey(window->rkey),
                    .bind_info = {target, (uintptr_t)target->addr, size + 8, IBV_ACCESS_REMOTE_WRITE}},
    };
    CHECK(ibv_post_send(qp, &wr, &bad) == 0, "bind");
    complete_well(send_cq, "bind");
    return wr.bind_mw.rkey;
}

static void run_target(enum op op, size_t size)
{
    size_t head = type == IBV_QPT_UD ? GRH : 0;
    uint32_t key = 0;
    memset(target->addr, 0xee, head + size + 8);
    if (op == READ)
        fill(target, size);
    if (op == CAS || op == FADD)
        put(target, word(0));
    if (op == SEND || op == SEND_IMM || op == SEND_INV)
        post_recv(0, head + size + 8);
    if (op == WRITE_IMM)
        post_recv(0, 0);
    if (op == SEND_INV)
        key = bind_window(size);
    if (op == PIPE)
        for (size_t i = 0; i < CHUNKS; i++)
            post_recv(size / CHUNKS * i + (type == IBV_QPT_UD ? i * GRH : 0), head + size / CHUNKS);
    barrier(key);
    if (op == SEND || op == SEND_IMM || op == SEND_INV || op == WRITE_IMM) {
        struct ibv_wc wc = complete_well(recv_cq, op_names[op]);
        CHECK(wc.opcode == (op == WRITE_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV), "%s: opcode %d", op_names[op], wc.opcode);
        CHECK(wc.byte_len == head + size, "%s: %u octets, not %zu", op_names[op], wc.byte_len, head + size);
        bool imm = op == SEND_IMM || op == WRITE_IMM;
        CHECK(!(wc.wc_flags & IBV_WC_WITH_IMM) == !imm, "%s: flags %x", op_names[op], wc.wc_flags);
        CHECK(!imm || be32toh(wc.imm_data) == 0xcafe0000 + seed, "%s: immediate data %x", op_names[op], be32toh(wc.imm_data));
        /* rxe hands out the kernel's flag, which is another one in libibverbs. */
        if (op == SEND_INV)
            CHECK((wc.wc_flags & (IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK)) && wc.invalidated_rkey == key, "%s: flags %x, key %x", op_names[op], wc.wc_flags, wc.invalidated_rkey);
        if (type == IBV_QPT_UD) {
            CHECK(wc.src_qp == peer.qpn && (wc.wc_flags & IBV_WC_GRH), "%s: from %u, flags %x", op_names[op], wc.src_qp, wc.wc_flags);
            CHECK(memcmp((uint8_t *)target->addr + 36, gid.raw + 12, 4) == 0, "%s: another destination in the header", op_names[op]);
        }
        verify(target, head, size, op_names[op]);
    }
    if (op == PIPE) {
        for (size_t i = 0; i < CHUNKS; i++) {
            struct ibv_wc wc = complete_well(recv_cq, op_names[op]);
            CHECK(wc.byte_len == head + size / CHUNKS, "pipe: %u octets", wc.byte_len);
            for (size_t j = 0, at = size / CHUNKS * i + (i + 1) * head; j < size / CHUNKS; j++)
                CHECK(((uint8_t *)target->addr)[at + j] == octet(seed, size / CHUNKS * i + j), "pipe: message %zu octet %zu", i, j);
        }
    }
    barrier(0);
    if (op == WRITE) {
        /* UC's initiator does not know when its message arrives, and the barrier may overtake it. */
        for (int i = 0; type == IBV_QPT_UC && i < SECONDS * 1000 && !arrived(size); i++)
            usleep(1000);
        verify(target, 0, size, op_names[op]);
    }
    if (op == CAS)
        CHECK(get(target) == word(1), "compare-swap: the word is %llx", (unsigned long long)get(target));
    if (op == FADD)
        CHECK(get(target) == word(0) + 2 * word(1), "fetch-add: the word is %llx", (unsigned long long)get(target));
    if (op == SEND_INV)
        ibv_dealloc_mw(window);
}

static void run_pipe(size_t size)
{
    size_t chunk = size / CHUNKS;
    fill(source, size);
    for (size_t i = 0; i < CHUNKS; i++) {
        struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .send_flags = i + 1 == CHUNKS || type != IBV_QPT_RC ? IBV_SEND_SIGNALED : 0};
        post(&wr, chunk * i, chunk);
        if (type == IBV_QPT_RC) { /* each is read back, unfenced and behind it, when it has arrived */
            struct ibv_send_wr read = {.opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED};
            read.wr.rdma.remote_addr = peer.addr + chunk * i;
            read.wr.rdma.rkey = peer.rkey;
            post(&read, size + chunk * i, chunk);
        }
    }
    for (size_t i = 0; i < CHUNKS + (type == IBV_QPT_RC); i++)
        complete_well(send_cq, "pipe");
    if (type == IBV_QPT_RC)
        for (size_t i = 0; i < chunk * CHUNKS; i++)
            CHECK(((uint8_t *)source->addr)[size + i] == octet(seed, i), "pipe: read back octet %zu of %zu: %02x, not %02x",
                  i, size, ((uint8_t *)source->addr)[size + i], octet(seed, i));
}

static void run_initiator(enum op op, size_t size)
{
    static const enum ibv_wr_opcode wr_opcodes[OPS] = {
        IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
        IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    };
    static const enum ibv_wc_opcode wc_opcodes[OPS] = {
        IBV_WC_SEND, IBV_WC_SEND, IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE,
        IBV_WC_RDMA_READ, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD,
    };
    uint32_t key = barrier(0);
    if (op == PIPE) {
        run_pipe(size);
        barrier(0);
        return;
    }
    memset(source->addr, 0xee, size + 8);
    if (op != READ)
        fill(source, size);
    struct ibv_send_wr wr = {.opcode = wr_opcodes[op], .send_flags = IBV_SEND_SIGNALED};
    if (op == SEND_IMM || op == WRITE_IMM)
        wr.imm_data = htobe32(0xcafe0000 + seed);
    if (op == SEND_INV)
        wr.invalidate_rkey = key;
    if (op == WRITE || op == WRITE_IMM || op == READ) {
        wr.wr.rdma.remote_addr = peer.addr;
        wr.wr.rdma.rkey = peer.rkey;
    }
    for (int round = 0; round < (op == CAS || op == FADD ? 2 : 1); round++) {
        uint64_t expected = word(0) + (op == FADD ? round * word(1) : 0);
        if (op == CAS || op == FADD) {
            wr.wr.atomic.remote_addr = peer.addr;
            wr.wr.atomic.rkey = peer.rkey;
            wr.wr.atomic.compare_add = op == CAS ? word(0) : word(1);
            /* The second comparison fails: the word has changed. */
            wr.wr.atomic.swap = round == 0 ? word(1) : word(2);
            if (op == CAS && round == 1)
                expected = word(1);
        }
        post(&wr, 0, size);
        struct ibv_wc wc = complete_well(send_cq, op_names[op]);
        CHECK(wc.opcode == wc_opcodes[op], "%s: opcode %d", op_names[op], wc.opcode);
        if (op == CAS || op == FADD)
            CHECK(get(source) == expected, "%s %d: got %llx, not %llx", op_names[op], round,
                  (unsigned long long)get(source), (unsigned long long)expected);
    }
    if (op == READ)
        verify(source, 0, size, "read");
    barrier(0);
}

static void run_operations(char *sizes)
{
    unsigned done = 0;
    size_t octets = 0;
    connect_qp(7);
    for (char *text = strtok(sizes, ","); text; text = strtok(NULL, ",")) {
        size_t size = strtoul(text, NULL, 0);
        if (size > LARGEST / 2 || (type == IBV_QPT_UD && size > (size_t)mtu_octets))
            fail("size %zu is too large", size);
        for (int direction = 0; direction < 2; direction++) {
            for (enum op op = 0; op < OPS; op++) {
                if (type == IBV_QPT_UD && op != SEND && op != SEND_IMM && op != PIPE)
                    continue;
                if (type == IBV_QPT_UC && (op == SEND_INV || op == READ || op == CAS || op == FADD))
                    continue;
                size_t of = op == CAS || op == FADD ? 8 : op == PIPE ? size / CHUNKS * CHUNKS : size;
                seed++;
                if ((direction == 0) == client)
                    run_initiator(op, of);
                else
                    run_target(op, of);
                done++;
                octets += of;
            }
        }
    }
    printf("operations: %u, octets: %zu\n", done, octets);
    close_qp();
}

/* What each failure must end in, at the initiator. */
static void run_failure(enum failure failure, bool initiator)
{
    /* rxe refuses to post it. */
    bool posted = failure != ATOMIC_MISALIGNED;
    static const enum ibv_wc_status ends[FAILURES] = {
        IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR,
        IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
    };
    seed++;
    connect_qp(2);
    if (!initiator) {
        memset(target->addr, 0xee, LARGEST);
        if (failure == TOO_LONG)
            post_recv(0, 2000);
    }
    barrier(0);
    if (initiator && posted) {
        struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
        wr.wr.rdma.remote_addr = peer.addr + (failure == OUT_OF_BOUNDS ? LARGEST - 100 : 0);
        wr.wr.rdma.rkey = failure == NO_PERMISSION ? peer.read_only : peer.rkey;
        if (failure == BAD_KEY || failure == READ_BAD_KEY)
            wr.wr.rdma.rkey ^= 0x55;
        if (failure == READ_BAD_KEY)
            wr.opcode = IBV_WR_RDMA_READ;
        if (failure == TOO_LONG || failure == NO_RECEIVE)
            wr.opcode = IBV_WR_SEND;
        post(&wr, 0, 5000);
        /* Another one behind it is flushed. */
        struct ibv_send_wr behind = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
        post(&behind, 0, 10);
        struct ibv_wc wc = complete(send_cq);
        CHECK(wc.status == ends[failure], "%s: ended as %s, not %s", failure_names[failure],
              ibv_wc_status_str(wc.status), ibv_wc_status_str(ends[failure]));
        wc = complete(send_cq);
        CHECK(wc.status == IBV_WC_WR_FLUSH_ERR, "%s: the next ended as %s", failure_names[failure], ibv_wc_status_str(wc.status));
    }
    barrier(0);
    if (!initiator) {
        struct ibv_wc wc = {0};
        if (failure == TOO_LONG) {
            wc = complete(recv_cq);
            /* rxe finds it while it copies, and says so; it should know beforehand. */
            CHECK(wc.status == IBV_WC_LOC_LEN_ERR || wc.status == IBV_WC_LOC_QP_OP_ERR, "too-long: ended as %s", ibv_wc_status_str(wc.status));
        } else if (failure != OUT_OF_BOUNDS) {
            for (size_t i = 0; i < LARGEST; i++)
                CHECK(((uint8_t *)target->addr)[i] == 0xee, "%s: wrote octet %zu", failure_names[failure], i);
        }
        CHECK(ibv_poll_cq(recv_cq, 1, &wc) == 0, "%s: a completion too many", failure_names[failure]);
    }
    barrier(0);
    printf("%s, as %s: ok\n", failure_names[failure], initiator ? "initiator" : "target");
    close_qp();
}

/* Writes until that fails; says how. */
static void run_writes(void)
{
    unsigned posted = 0, done = 0;
    connect_qp(7);
    printf("connected\n");
    fflush(stdout);
    if (!writes)
        for (;;)
            pause();
    for (;; posted++) {
        struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
        wr.wr.rdma.remote_addr = peer.addr;
        wr.wr.rdma.rkey = peer.rkey;
        post(&wr, 0, 65536);
        if (posted >= 16) {
            struct ibv_wc wc = complete(send_cq);
            if (wc.status != IBV_WC_SUCCESS) {
                printf("after %u writes: %s\n", done, ibv_wc_status_str(wc.status));
                return;
            }
            if (done++ == 32) {
                printf("writing\n");
                fflush(stdout);
            }
        }
    }
}

int main(int argc, char **argv)
{
    char *host = NULL, *address = NULL, *sizes = "0,1,1024,1025,4097,1048579";
    int option, port = 18600;
    while ((option = getopt(argc, argv, "c:b:p:t:m:s:ewk")) != -1) {
        switch (option) {
        case 'c': host = optarg; client = true; break;
        case 'b': address = optarg; break;
        case 'p': port = atoi(optarg); break;
        case 't': type = !strcmp(optarg, "ud") ? IBV_QPT_UD : !strcmp(optarg, "uc") ? IBV_QPT_UC : IBV_QPT_RC; break;
        case 'm':
            mtu_octets = atoi(optarg);
            for (mtu = IBV_MTU_256; mtu < IBV_MTU_4096 && 128 << mtu < mtu_octets; mtu++) {}
            break;
        case 's': sizes = optarg; break;
        case 'e': errors = true; break;
        case 'w': writes = endless = true; break;
        case 'k': endless = true; break;
        default: return 2;
        }
    }
    CHECK(address, "the own address is missing: -b ADDRESS");
    setvbuf(stdout, NULL, _IOLBF, 0);
    to_gid(address, &gid);
    open_device();
    connect_control(host, address, port);
    if (endless)
        run_writes();
    else if (errors)
        for (int direction = 0; direction < 2; direction++)
            for (enum failure failure = 0; failure < FAILURES; failure++)
                run_failure(failure, (direction == 0) == client);
    else
        run_operations(strdup(sizes));
    printf("all well\n");
    return 0;
}
