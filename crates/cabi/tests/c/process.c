/* Processes: children with and without a use of their own, signals, and an end in the middle of it all.
 * Called with "end" it leaves with requests outstanding, by the return of main. */
#include "check.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>

static char local[4096], remote[4096];

struct pair {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *from, *to;
	struct end one, two;
};

static struct pair open_pair(void)
{
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct pair pair = {.context = open_named("roce_lo")};

	pair.pd = ibv_alloc_pd(pair.context);
	MUST("ibv_alloc_pd", pair.pd);
	pair.from = ibv_reg_mr(pair.pd, local, sizeof(local), all);
	pair.to = ibv_reg_mr(pair.pd, remote, sizeof(remote), all);
	MUST("ibv_reg_mr", pair.from && pair.to);
	pair.one = make_end(pair.pd, IBV_QPT_RC, NULL);
	pair.two = make_end(pair.pd, IBV_QPT_RC, NULL);
	connect_ends(&pair.one, &pair.two, all);
	return pair;
}

static int post_write(struct pair *pair)
{
	struct ibv_sge sge = {.addr = (uintptr_t)local, .length = sizeof(local), .lkey = pair->from->lkey};
	struct ibv_send_wr wr = request(&sge, IBV_WR_RDMA_WRITE);

	wr.wr.rdma.remote_addr = (uintptr_t)remote;
	wr.wr.rdma.rkey = pair->to->rkey;
	return post(pair->one.qp, &wr);
}

static void write_and_check(struct pair *pair, int value)
{
	memset(local, value, sizeof(local));
	memset(remote, 0, sizeof(remote));
	EQ("ibv_post_send", post_write(pair), 0);
	EQ("status", wait_wc(pair->one.cq).status, IBV_WC_SUCCESS);
	TRUE("written", !memcmp(local, remote, sizeof(local)));
}

static void close_pair(struct pair *pair)
{
	destroy_end(&pair->one);
	destroy_end(&pair->two);
	EQ("ibv_dereg_mr", ibv_dereg_mr(pair->from) + ibv_dereg_mr(pair->to), 0);
	EQ("ibv_dealloc_pd", ibv_dealloc_pd(pair->pd), 0);
	EQ("ibv_close_device", ibv_close_device(pair->context), 0);
}

/* Runs something in a child, and waits for it. */
static void in_child(const char *what, void (*body)(void))
{
	int status;
	pid_t child = fork();

	MUST("fork", child >= 0);
	if (child == 0) {
		alarm(30);
		body();
		exit(failures != 0);
	}
	MUST("waitpid", waitpid(child, &status, 0) == child);
	EQ(what, status, 0);
}

static void nothing(void)
{
}

static void use_anew(void)
{
	struct pair pair = open_pair();

	write_and_check(&pair, 3);
	close_pair(&pair);
}

static void use_anew_twice(void)
{
	use_anew();
	in_child("a child of a child", use_anew);
}

static int threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	int count = 0;

	MUST("/proc/self/task", tasks);
	while ((task = readdir(tasks)))
		count += task->d_name[0] != '.';
	closedir(tasks);
	return count;
}

/* A child of a child of a child and so on has what it needs once, like all others. */
static int generations;

static void descend(void)
{
	use_anew();
	use_anew();
	EQ("threads", threads(), 2);
	if (generations-- > 0)
		in_child("one generation more", descend);
}

/* Every thread but this one leaves the signals of programs to them. */
static void signals(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	int others = 0;

	MUST("/proc/self/task", tasks);
	while ((task = readdir(tasks))) {
		char path[300], line[200];
		unsigned long long blocked = 0;
		FILE *status;

		if (task->d_name[0] == '.' || atoi(task->d_name) == getpid())
			continue;
		others++;
		snprintf(path, sizeof(path), "/proc/self/task/%s/status", task->d_name);
		status = fopen(path, "r");
		MUST("status of a thread", status);
		while (fgets(line, sizeof(line), status))
			sscanf(line, "SigBlk: %llx", &blocked);
		fclose(status);
		for (int i = 0; i < 5; i++) {
			int number = (int[]){SIGINT, SIGALRM, SIGUSR1, SIGTERM, SIGCHLD}[i];

			TRUE("a signal is blocked", blocked >> (number - 1) & 1);
		}
	}
	closedir(tasks);
	TRUE("there is a thread", others > 0);
}

int main(int argc, char **argv)
{
	struct pair pair;

	if (argc == 1) {
		in_child("a child before any use", use_anew);
		in_child("another", use_anew);
		generations = 10;
		in_child("many generations", descend);
	}
	pair = open_pair();
	write_and_check(&pair, 1);
	if (argc > 1 && !strcmp(argv[1], "end")) {
		for (int i = 0; i < 8; i++)
			EQ("ibv_post_send", post_write(&pair), 0);
		return failures != 0;
	}
	signals();
	EQ("ibv_fork_init", ibv_fork_init(), 0);
	in_child("a child that does nothing", nothing);
	write_and_check(&pair, 2);
	in_child("a child that uses it anew", use_anew_twice);
	write_and_check(&pair, 4);
	close_pair(&pair);
	return failures != 0;
}
