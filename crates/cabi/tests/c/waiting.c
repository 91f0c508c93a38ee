/* Threads that wait for events: interrupted by signals, cancelled, and left by what they wait on. */
#include "check.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *comp_channel;
static struct rdma_event_channel *cm_channel;
static struct rdma_cm_id *client, *listener;

/* What is waited on: how to make and to destroy it, to wait, to make the wait succeed, and to clean up then. */
struct kind {
	const char *name;
	void (*make)(void);
	void (*destroy)(void);
	int (*get)(void);
	void (*raise)(void);
	void (*clean)(void);
};

static void nothing(void)
{
}

/* The end of a queue pair with one receive, in a queue that is told of it. */
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_qp *qp;

static void end_of_queue_pair(void)
{
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	init.cap.max_send_wr = init.cap.max_recv_wr = 2;
	qp = ibv_create_qp(pd, &init);
	MUST("ibv_create_qp", qp && !to_init(qp, 0));
	MUST("a receive", srq || !post_recv(qp, NULL));
	MUST("to ERR", !ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

static void destroy_queues(void)
{
	EQ("ibv_destroy_qp", ibv_destroy_qp(qp), 0);
	if (srq)
		EQ("ibv_destroy_srq", ibv_destroy_srq(srq), 0);
	EQ("ibv_destroy_cq", ibv_destroy_cq(cq), 0);
}

static void make_comp_channel(void)
{
	comp_channel = ibv_create_comp_channel(context);
	MUST("ibv_create_comp_channel", comp_channel);
}

static void destroy_comp_channel(void)
{
	EQ("ibv_destroy_comp_channel", ibv_destroy_comp_channel(comp_channel), 0);
}

static int get_cq_event(void)
{
	struct ibv_cq *which;
	void *of;
	int result = ibv_get_cq_event(comp_channel, &which, &of);

	if (!result)
		ibv_ack_cq_events(which, 1);
	return result;
}

static void raise_cq_event(void)
{
	srq = NULL;
	cq = ibv_create_cq(context, 16, NULL, comp_channel, 0);
	MUST("ibv_create_cq", cq && !ibv_req_notify_cq(cq, 0));
	end_of_queue_pair();
}

static void open_context(void)
{
	context = open_named("roce_lo");
	pd = ibv_alloc_pd(context);
	MUST("ibv_alloc_pd", pd);
}

static void close_context(void)
{
	EQ("ibv_dealloc_pd", ibv_dealloc_pd(pd), 0);
	EQ("ibv_close_device", ibv_close_device(context), 0);
}

static int get_async_event(void)
{
	struct ibv_async_event event;
	int result = ibv_get_async_event(context, &event);

	if (!result) {
		EQ("what happened", event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
		ibv_ack_async_event(&event);
	}
	return result;
}

static void raise_async_event(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1}};

	srq = ibv_create_srq(pd, &init);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	MUST("a queue", srq && cq);
	end_of_queue_pair();
}

static void make_cm_channel(void)
{
	cm_channel = rdma_create_event_channel();
	MUST("rdma_create_event_channel", cm_channel);
}

static void destroy_cm_channel(void)
{
	rdma_destroy_event_channel(cm_channel);
}

static int get_cm_event(void)
{
	struct rdma_cm_event *event;
	int result = rdma_get_cm_event(cm_channel, &event);

	if (!result) {
		EQ("the event", event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
		rdma_ack_cm_event(event);
	}
	return result;
}

static void raise_cm_event(void)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	sin.sin_port = htons(9);
	MUST("rdma_create_id", !rdma_create_id(cm_channel, &client, NULL, RDMA_PS_TCP));
	MUST("rdma_resolve_addr", !rdma_resolve_addr(client, NULL, (struct sockaddr *)&sin, 2000));
}

static void destroy_client(void)
{
	EQ("rdma_destroy_id", rdma_destroy_id(client), 0);
}

static void listen_alone(void)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	MUST("rdma_create_id", !rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP));
	MUST("rdma_bind_addr", !rdma_bind_addr(listener, (struct sockaddr *)&sin));
	MUST("rdma_listen", !rdma_listen(listener, 4));
}

static void stop_listening(void)
{
	EQ("rdma_destroy_id", rdma_destroy_id(listener), 0);
}

static int get_request(void)
{
	struct rdma_cm_id *id;
	int result = rdma_get_request(listener, &id);

	if (!result) {
		EQ("rdma_reject", rdma_reject(id, NULL, 0), 0);
		EQ("rdma_destroy_id", rdma_destroy_id(id), 0);
	}
	return result;
}

/* Of a client with a channel, so that its calls do not wait. */
static void send_request(void)
{
	struct ibv_qp_init_attr attr = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct rdma_conn_param param = {.initiator_depth = 1, .responder_resources = 1, .retry_count = 7};
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct rdma_cm_event *event;

	sin.sin_port = rdma_get_src_port(listener);
	make_cm_channel();
	MUST("rdma_create_id", !rdma_create_id(cm_channel, &client, NULL, RDMA_PS_TCP));
	MUST("rdma_resolve_addr", !rdma_resolve_addr(client, NULL, (struct sockaddr *)&sin, 2000));
	MUST("an event", !rdma_get_cm_event(cm_channel, &event) && !rdma_ack_cm_event(event));
	MUST("rdma_resolve_route", !rdma_resolve_route(client, 2000));
	MUST("an event", !rdma_get_cm_event(cm_channel, &event) && !rdma_ack_cm_event(event));
	MUST("rdma_create_qp", !rdma_create_qp(client, NULL, &attr));
	MUST("rdma_connect", !rdma_connect(client, &param));
}

static void take_answer(void)
{
	struct rdma_cm_event *event;

	MUST("rdma_get_cm_event", !rdma_get_cm_event(cm_channel, &event));
	EQ("the event", event->event, RDMA_CM_EVENT_REJECTED);
	rdma_ack_cm_event(event);
	rdma_destroy_qp(client);
	destroy_client();
	destroy_cm_channel();
}

static const struct kind kinds[] = {
	{"ibv_get_async_event", nothing, nothing, get_async_event, raise_async_event, destroy_queues},
	{"ibv_get_cq_event", make_comp_channel, destroy_comp_channel, get_cq_event, raise_cq_event, destroy_queues},
	{"rdma_get_cm_event", make_cm_channel, destroy_cm_channel, get_cm_event, raise_cm_event, destroy_client},
	{"rdma_get_request", listen_alone, stop_listening, get_request, send_request, take_answer},
};

static atomic_int returned, result, why, handled;
static atomic_long tid;

static void handler(int number)
{
	(void)number;
	handled++;
}

static void *wait_for_one(void *argument)
{
	const struct kind *kind = argument;

	tid = syscall(SYS_gettid);
	result = kind->get();
	why = errno;
	returned = 1;
	return NULL;
}

static pthread_t start(const struct kind *kind)
{
	pthread_t thread;

	returned = handled = 0;
	tid = 0;
	MUST("pthread_create", !pthread_create(&thread, NULL, wait_for_one, (void *)kind));
	return thread;
}

/* Until the thread has slept for a while. */
static void await_sleep(void)
{
	for (int asleep = 0; asleep < 10;) {
		char path[64], line[512] = "";
		FILE *file;

		usleep(2000);
		snprintf(path, sizeof(path), "/proc/self/task/%ld/stat", (long)tid);
		file = fopen(path, "r");
		asleep = file && fgets(line, sizeof(line), file) && strstr(line, ") S ") ? asleep + 1 : 0;
		if (file)
			fclose(file);
	}
}

static void handle(int flags)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = flags};

	MUST("sigaction", !sigaction(SIGUSR1, &action, NULL));
}

static void join(pthread_t thread, void *how)
{
	void *end;

	MUST("pthread_join", !pthread_join(thread, &end));
	TRUE("how the thread has ended", end == how);
}

static void interrupted(const struct kind *kind)
{
	pthread_t thread;

	handle(0);
	thread = start(kind);
	while (!returned) {
		pthread_kill(thread, SIGUSR1);
		usleep(2000);
	}
	join(thread, NULL);
	EQ(kind->name, result, -1);
	EQ("errno", why, EINTR);
}

static void restarted(const struct kind *kind)
{
	pthread_t thread;

	handle(SA_RESTART);
	thread = start(kind);
	await_sleep();
	while (handled < 5) {
		pthread_kill(thread, SIGUSR1);
		usleep(2000);
	}
	TRUE("it goes on", !returned);
	kind->raise();
	join(thread, NULL);
	EQ(kind->name, result, 0);
	kind->clean();
}

static void cancelled(const struct kind *kind)
{
	pthread_t thread = start(kind);

	await_sleep();
	EQ("pthread_cancel", pthread_cancel(thread), 0);
	join(thread, PTHREAD_CANCELED);
}

/* Nobody touches the one that is gone: what is freed is filled with something else here. */
static void left(const struct kind *kind)
{
	pthread_t thread;

	handle(0);
	thread = start(kind);
	await_sleep();
	kind->destroy();
	TRUE("it goes on", !returned);
	while (!returned) {
		pthread_kill(thread, SIGUSR1);
		usleep(2000);
	}
	join(thread, NULL);
	EQ(kind->name, result, -1);
	EQ("errno", why, EINTR);
}

static void closed(int fd, const struct kind *kind)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	MUST("a copy", copy >= 0 && !close(fd));
	errno = 0;
	EQ(kind->name, kind->get(), -1);
	EQ("errno", errno, EBADF);
	MUST("it is back", dup2(copy, fd) == fd && !close(copy));
}

static int descriptors(void)
{
	int count = 0;

	for (int fd = 0; fd < 1000; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

/* A thread that works is cancelled where it asks to be, and nowhere in between. */
static void *work(void *argument)
{
	struct end *ends = argument;
	struct ibv_send_wr wr = request(NULL, IBV_WR_SEND);
	struct ibv_wc wc;

	wr.num_sge = 0;
	for (;;) {
		MUST("ibv_post_recv", !post_recv(ends[1].qp, NULL));
		MUST("ibv_post_send", !post(ends[0].qp, &wr));
		while (ibv_poll_cq(ends[0].cq, 1, &wc) == 0)
			;
		while (ibv_poll_cq(ends[1].cq, 1, &wc) == 0)
			;
		tid++;
		pthread_testcancel();
	}
	return NULL;
}

static void cancelled_at_work(void)
{
	struct end ends[2] = {make_end(pd, IBV_QPT_RC, NULL), make_end(pd, IBV_QPT_RC, NULL)};

	connect_ends(&ends[0], &ends[1], 0);
	for (int i = 0; i < 20; i++) {
		pthread_t thread;

		tid = 0;
		MUST("pthread_create", !pthread_create(&thread, NULL, work, ends));
		while (tid < 3 + i)
			;
		EQ("pthread_cancel", pthread_cancel(thread), 0);
		join(thread, PTHREAD_CANCELED);
	}
	destroy_end(&ends[0]);
	destroy_end(&ends[1]);
}

static void all(void)
{
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		const struct kind *kind = &kinds[i];

		kind->make();
		interrupted(kind);
		cancelled(kind);
		restarted(kind);
		if (kind->get == get_request) {
			kind->destroy();
			continue;
		}
		closed(kind->get == get_async_event ? context->async_fd
		       : kind->get == get_cq_event  ? comp_channel->fd
						    : cm_channel->fd,
		       kind);
		if (kind->destroy != nothing)
			left(kind);
	}
	cancelled_at_work();
}

int main(void)
{
	const struct kind device = {"ibv_get_async_event", nothing, close_context, get_async_event, nothing, nothing};
	int before, patience;

	/* A thread that nothing can end is one of the failures. */
	alarm(50);
	open_context();
	/* The library opens what it needs once. */
	all();
	/* The socket of a listener stays for a second, for the next one. */
	sleep(2);
	before = descriptors();
	all();
	for (patience = 100; descriptors() != before && patience > 0; patience--)
		usleep(100 * 1000);
	EQ("descriptors", descriptors(), before);
	left(&device);
	return failures != 0;
}
