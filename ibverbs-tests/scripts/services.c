/* Asks for services at the creation of queue pairs, moves a table through them, and is refused where it should be. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "balboa_dv.h"

/* A row of BALBOA's tables, and the dense columns of it. */
#define COLUMNS 48
#define DENSE 16
/* Queue pairs with services that a program may have. */
#define MOST 64

static struct ibv_context *card;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static const char *const both[] = { "inspect", "preprocess" };
static const struct balboa_dv_setting patterns = { "patterns", "DROP TABLE\n", 11 };

static void check(int is_so, const char *what)
{
	if (!is_so) {
		fprintf(stderr, "%s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static struct ibv_qp_init_attr_ex wanted(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr_ex attr;

	memset(&attr, 0, sizeof attr);
	attr.send_cq = attr.recv_cq = cq;
	attr.qp_type = type;
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 1;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	attr.comp_mask = IBV_QP_INIT_ATTR_PD;
	attr.pd = pd;
	return attr;
}

static struct balboa_dv_services services(uint32_t names, uint32_t settings)
{
	struct balboa_dv_services asked;

	memset(&asked, 0, sizeof asked);
	asked.names = both;
	asked.num_names = names;
	asked.settings = &patterns;
	asked.num_settings = settings;
	asked.side = BALBOA_DV_SIDE_RESPONDER;
	return asked;
}

static struct ibv_qp *served(void)
{
	struct ibv_qp_init_attr_ex attr = wanted(IBV_QPT_RC);
	struct balboa_dv_services asked = services(2, 1);

	return balboa_dv_create_qp(card, &attr, &asked);
}

static void refused(enum ibv_qp_type type, const struct balboa_dv_services *asked, int with, const char *what)
{
	struct ibv_qp_init_attr_ex attr = wanted(type);

	errno = 0;
	check(balboa_dv_create_qp(card, &attr, asked) == NULL && errno == with, what);
}

/* Connects a queue pair to one of the same card as far as RTS; the errno of what is refused. */
static int connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr a;
	int refused;

	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_INIT;
	a.port_num = 1;
	a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	refused = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (refused)
		return refused;
	a.qp_state = IBV_QPS_RTR;
	a.path_mtu = IBV_MTU_1024;
	a.dest_qp_num = peer->qp_num;
	a.max_dest_rd_atomic = 1;
	a.ah_attr.is_global = 1;
	a.ah_attr.port_num = 1;
	a.ah_attr.grh.sgid_index = 1;
	check(ibv_query_gid(card, 1, 1, &a.ah_attr.grh.dgid) == 0, "ibv_query_gid");
	refused = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (refused)
		return refused;
	a.qp_state = IBV_QPS_RTS;
	a.timeout = 14;
	a.retry_cnt = 7;
	a.rnr_retry = 7;
	a.max_rd_atomic = 1;
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static enum ibv_wc_status write_bytes(struct ibv_qp *qp, struct ibv_mr *mr, const void *from, void *to, uint32_t length)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr, *failed;
	struct ibv_wc wc;

	memset(&wr, 0, sizeof wr);
	sge.addr = (uintptr_t)from;
	sge.length = length;
	sge.lkey = mr->lkey;
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.wr.rdma.remote_addr = (uintptr_t)to;
	wr.wr.rdma.rkey = mr->rkey;
	check(ibv_post_send(qp, &wr, &failed) == 0, "ibv_post_send");
	while (ibv_poll_cq(cq, 1, &wc) == 0)
		;
	return wc.status;
}

static void move_a_row(struct ibv_qp *plain)
{
	static union {
		int32_t as_integers[COLUMNS];
		float as_features[COLUMNS];
		char as_text[4 * COLUMNS];
	} memory[2], before;
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	int column;

	check(mr != NULL, "ibv_reg_mr");
	for (column = 0; column < COLUMNS; column++)
		memory[0].as_integers[column] = 1000 * column - 3000;
	check(write_bytes(plain, mr, &memory[0], &memory[1], sizeof memory[0]) == IBV_WC_SUCCESS, "a WRITE of a row");
	for (column = 0; column < COLUMNS; column++) {
		int32_t x = memory[0].as_integers[column];
		double feature = column < DENSE ? log1p(x > 0 ? x : 0) : x % 8192;

		check(fabs(memory[1].as_features[column] - feature) < 1e-5 * (1 + feature), "a feature");
	}
	before = memory[1];
	strcpy(memory[0].as_text, "x'; DROP TABLE rows");
	check(write_bytes(plain, mr, &memory[0], &memory[1], sizeof memory[0]) == IBV_WC_REM_OP_ERR, "a pattern");
	check(memcmp(&memory[1], &before, sizeof before) == 0, "a refused packet is there");
	check(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
}

/* What is asked for wrongly. */
static void refusals(void)
{
	static const char *const nonsense[] = { "nonsense" };
	struct balboa_dv_services asked = services(0, 0);

	refused(IBV_QPT_RC, &asked, EINVAL, "no name");
	refused(IBV_QPT_RC, NULL, EINVAL, "no services");
	asked = services(1, 0);
	refused(IBV_QPT_RC, &asked, EINVAL, "inspect without patterns");
	asked.names = nonsense;
	refused(IBV_QPT_RC, &asked, EINVAL, "a service that there is not");
	asked = services(2, 1);
	refused(IBV_QPT_UD, &asked, EINVAL, "datagrams");
	asked.side = 3;
	refused(IBV_QPT_RC, &asked, EINVAL, "a third side");
	asked = services(2, 1);
	asked.comp_mask = 1;
	refused(IBV_QPT_RC, &asked, EOPNOTSUPP, "an unknown field");
}

/* As many queue pairs with services as a program may have. */
static void quota(int there)
{
	struct ibv_qp *all[MOST + 1];
	int count = 0;

	while (count <= MOST && (all[count] = served()) != NULL)
		count++;
	check(count + there == MOST && errno == ENOMEM, "the number of queue pairs with services");
	while (count > 0)
		check(ibv_destroy_qp(all[--count]) == 0, "ibv_destroy_qp");
}

static void wait_for(const char *file, const char *with)
{
	printf("%s\n", with);
	fflush(stdout);
	while (access(file, F_OK) != 0)
		usleep(10000);
}

int main(int argc, char **argv)
{
	struct ibv_device **device = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr_ex attr;
	struct ibv_qp *plain, *own;

	check(argc == 2 || argc == 4, "services DEVICE [FILE FILE]");
	while (*device && strcmp(ibv_get_device_name(*device), argv[1]) != 0)
		device++;
	check(*device && (card = ibv_open_device(*device)), "ibv_open_device");
	check((pd = ibv_alloc_pd(card)) != NULL, "ibv_alloc_pd");
	check((cq = ibv_create_cq(card, 4, NULL, NULL, 0)) != NULL, "ibv_create_cq");
	if (argc == 2) {
		struct balboa_dv_services asked = services(2, 1);

		refused(IBV_QPT_RC, &asked, EOPNOTSUPP, "a card without a place for services");
		printf("this card has no services, and says so\n");
		return 0;
	}
	refusals();
	attr = wanted(IBV_QPT_RC);
	check((plain = ibv_create_qp_ex(card, &attr)) != NULL, "ibv_create_qp_ex");
	check((own = served()) != NULL, "balboa_dv_create_qp");
	quota(1);
	check(connect_to(plain, own) == 0 && connect_to(own, plain) == 0, "a connection");
	move_a_row(plain);
	/* While the owner of the card looks, and takes the services away. */
	wait_for(argv[2], "asked");
	check(ibv_destroy_qp(own) == 0, "ibv_destroy_qp");
	check((own = served()) != NULL, "balboa_dv_create_qp");
	/* While the owner attaches others for all connections. */
	wait_for(argv[3], "again");
	check(connect_to(own, plain) == EOPNOTSUPP, "a connection past the owner's services");
	quota(1);
	printf("services were had and refused as they should\n");
	return 0;
}
