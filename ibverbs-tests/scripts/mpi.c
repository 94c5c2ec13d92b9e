/* An MPI program that checks every byte that it moves.
 *
 *   mpi check [MIB]   ring, storm, collectives and windows; of the large reduction MIB MiB (default 64)
 *   mpi bench         a table by message size, of what moves between two ranks and among all
 *   mpi two           latency (us) and bandwidth one way (MB/s) by message size, between two ranks
 *
 * The last line is "N ranks, N checked, N wrong"; exit code 0 where nothing is wrong.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST (4 << 20)

static int rank, ranks;
static int64_t checked, wrong;

static void check(int is_right)
{
    checked++;
    wrong += !is_right;
}

static void *room(size_t bytes)
{
    void *at = calloc(1, bytes ? bytes : 1);
    if (at == NULL) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return at;
}

/* What a message from a rank, of a number, has at a place. */
static uint8_t pattern(int from, int number, size_t at)
{
    return (uint8_t)(from * 131 + number * 31 + at * 7 + (at >> 8) * 3 + (at >> 16));
}

static void fill(uint8_t *bytes, size_t size, int from, int number)
{
    for (size_t at = 0; at < size; at++)
        bytes[at] = pattern(from, number, at);
}

static int is_filled(const uint8_t *bytes, size_t size, int from, int number)
{
    for (size_t at = 0; at < size; at++)
        if (bytes[at] != pattern(from, number, at))
            return 0;
    return 1;
}

/* A message goes around twice; each rank adds one to each of its words. */
static void ring(void)
{
    enum { WORDS = 1 << 18, ROUNDS = 2 };
    int32_t *words = room(WORDS * sizeof *words);
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    for (int round = 0; round < ROUNDS; round++) {
        if (rank != 0 || round != 0) {
            MPI_Recv(words, WORDS, MPI_INT32_T, previous, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (int at = 0; at < WORDS; at++)
                check(words[at] == (round * ranks + rank - 1) + at);
        } else {
            for (int at = 0; at < WORDS; at++)
                words[at] = at - 1;
        }
        for (int at = 0; at < WORDS; at++)
            words[at]++;
        MPI_Send(words, WORDS, MPI_INT32_T, next, 1, MPI_COMM_WORLD);
    }
    if (rank == 0) {
        MPI_Recv(words, WORDS, MPI_INT32_T, previous, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int at = 0; at < WORDS; at++)
            check(words[at] == ROUNDS * ranks - 1 + at);
    }
    free(words);
}

/* All send to all, many messages of many sizes at once, received from whoever is first. */
static void storm(void)
{
    enum { MESSAGES = 24 };
    static const int sizes[] = {0, 1, 17, 4000, 8192, 12345, 65536, 300001};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    int count = MESSAGES * (ranks - 1), posted = 0;
    MPI_Request *requests = room(count * sizeof *requests);
    uint8_t **sent = room(count * sizeof *sent);
    for (int number = 0; number < MESSAGES; number++)
        for (int peer = 0; peer < ranks; peer++) {
            int size = sizes[number % SIZES];
            if (peer == rank)
                continue;
            sent[posted] = room(size);
            fill(sent[posted], size, rank, number);
            MPI_Isend(sent[posted], size, MPI_BYTE, peer, number, MPI_COMM_WORLD, &requests[posted]);
            posted++;
        }
    uint8_t *bytes = room(sizes[SIZES - 1]);
    for (int message = 0; message < count; message++) {
        MPI_Status status;
        int size;
        MPI_Recv(bytes, sizes[SIZES - 1], MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &size);
        check(size == sizes[status.MPI_TAG % SIZES]);
        check(is_filled(bytes, size, status.MPI_SOURCE, status.MPI_TAG));
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    for (int message = 0; message < count; message++)
        free(sent[message]);
    free(bytes);
    free(sent);
    free(requests);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void allreduce(size_t bytes)
{
    size_t words = bytes / sizeof(int64_t);
    int64_t *own = room(bytes), *sum = room(bytes), factor = (int64_t)ranks * (ranks + 1) / 2;
    for (size_t at = 0; at < words; at++)
        own[at] = (rank + 1) * (int64_t)(at % 1000003);
    MPI_Allreduce(own, sum, (int)words, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    for (size_t at = 0; at < words; at++)
        check(sum[at] == factor * (int64_t)(at % 1000003));
    free(own);
    free(sum);
}

/* The collectives that move `size` bytes between any two; `number` tells one call's bytes from another's. */
static void alltoall(uint8_t *from, uint8_t *to, int size, int number, int look)
{
    for (int peer = 0; look && peer < ranks; peer++)
        fill(from + (size_t)peer * size, size, rank, number + peer);
    MPI_Alltoall(from, size, MPI_BYTE, to, size, MPI_BYTE, MPI_COMM_WORLD);
    for (int peer = 0; look && peer < ranks; peer++)
        check(is_filled(to + (size_t)peer * size, size, peer, number + rank));
}

static void allgather(uint8_t *from, uint8_t *to, int size, int number, int look)
{
    if (look)
        fill(from, size, rank, number);
    MPI_Allgather(from, size, MPI_BYTE, to, size, MPI_BYTE, MPI_COMM_WORLD);
    for (int peer = 0; look && peer < ranks; peer++)
        check(is_filled(to + (size_t)peer * size, size, peer, number));
}

static void bcast(uint8_t *from, uint8_t *to, int size, int number, int look)
{
    int root = number % ranks;
    (void)from;
    if (look)
        memset(to, 0, size);
    if (look && rank == root)
        fill(to, size, root, number);
    MPI_Bcast(to, size, MPI_BYTE, root, MPI_COMM_WORLD);
    if (look)
        check(is_filled(to, size, root, number));
}

static void reduce_bytes(uint8_t *from, uint8_t *to, int size, int number, int look)
{
    if (look)
        fill(from, size, rank, number);
    MPI_Allreduce(from, to, size, MPI_UINT8_T, MPI_BXOR, MPI_COMM_WORLD);
    for (int at = 0; look && at < size; at++) {
        uint8_t expected = 0;
        for (int peer = 0; peer < ranks; peer++)
            expected ^= pattern(peer, number, at);
        if (to[at] != expected)
            check(0);
    }
    checked += look != 0;
}

static void reduce_scatter(uint8_t *from, uint8_t *to, int size, int number, int look)
{
    if (look)
        fill(from, (size_t)size * ranks, rank, number);
    MPI_Reduce_scatter_block(from, to, size, MPI_UINT8_T, MPI_BXOR, MPI_COMM_WORLD);
    for (int at = 0; look && at < size; at++) {
        uint8_t expected = 0;
        for (int peer = 0; peer < ranks; peer++)
            expected ^= pattern(peer, number, (size_t)rank * size + at);
        if (to[at] != expected)
            check(0);
    }
    checked += look != 0;
}

typedef void collective(uint8_t *from, uint8_t *to, int size, int number, int look);
static collective *const collectives[] = {reduce_bytes, alltoall, allgather, bcast, reduce_scatter};
enum { COLLECTIVES = sizeof collectives / sizeof *collectives };

static void all_collectives(void)
{
    static const int sizes[] = {1, 1000, 20000, 1 << 20};
    uint8_t *from = room((size_t)ranks << 20), *to = room((size_t)ranks << 20);
    for (int which = 0; which < COLLECTIVES; which++)
        for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++)
            collectives[which](from, to, sizes[size], 5 + (int)size, 1);
    free(from);
    free(to);
}

/* Everybody puts to the next, gets from the one before, and counts at rank 0. */
static void windows(void)
{
    enum { BYTES = 1 << 20, COUNTS = 100 };
    uint8_t *memory, *bytes = room(BYTES);
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    MPI_Win window;
    MPI_Win_allocate(BYTES, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);

    MPI_Win_fence(MPI_MODE_NOPRECEDE, window);
    fill(bytes, BYTES, rank, 1);
    MPI_Put(bytes, BYTES, MPI_BYTE, next, 0, BYTES, MPI_BYTE, window);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
    check(is_filled(memory, BYTES, previous, 1));

    memset(bytes, 0, BYTES);
    MPI_Win_lock(MPI_LOCK_SHARED, next, 0, window);
    MPI_Get(bytes, BYTES, MPI_BYTE, next, 0, BYTES, MPI_BYTE, window);
    MPI_Win_unlock(next, window);
    check(is_filled(bytes, BYTES, rank, 1));
    MPI_Barrier(MPI_COMM_WORLD);

    MPI_Group all, neighbour;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, 1, &previous, &neighbour);
    MPI_Win_post(neighbour, 0, window);
    MPI_Group_free(&neighbour);
    MPI_Group_incl(all, 1, &next, &neighbour);
    MPI_Win_start(neighbour, 0, window);
    fill(bytes, 5000, rank, 2);
    MPI_Put(bytes, 5000, MPI_BYTE, next, 100, 5000, MPI_BYTE, window);
    MPI_Win_complete(window);
    MPI_Win_wait(window);
    check(is_filled(memory + 100, 5000, previous, 2));
    MPI_Group_free(&neighbour);
    MPI_Group_free(&all);

    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
    memset(memory, 0, BYTES);
    MPI_Win_unlock(rank, window);
    MPI_Barrier(MPI_COMM_WORLD);
    int64_t one = 1, found = 0, last = -1, none = 0, own = rank + 1;
    MPI_Win_lock_all(0, window);
    for (int count = 0; count < COUNTS; count++) {
        MPI_Fetch_and_op(&one, &found, MPI_INT64_T, 0, 0, MPI_SUM, window);
        MPI_Win_flush(0, window);
        check(found > last);
        last = found;
    }
    /* One of all is the first. */
    MPI_Compare_and_swap(&own, &none, &found, MPI_INT64_T, 0, 8, window);
    MPI_Win_flush(0, window);
    MPI_Accumulate(&own, 1, MPI_INT64_T, 0, 16, 1, MPI_INT64_T, MPI_SUM, window);
    MPI_Win_unlock_all(window);
    int first = found == 0, firsts = 0;
    MPI_Allreduce(&first, &firsts, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    check(firsts == 1);
    MPI_Win_fence(MPI_MODE_NOPRECEDE, window);
    int64_t total[3];
    MPI_Get(total, sizeof total, MPI_BYTE, 0, 0, sizeof total, MPI_BYTE, window);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
    check(total[0] == (int64_t)COUNTS * ranks);
    check(total[1] >= 1 && total[1] <= ranks);
    check(total[2] == (int64_t)ranks * (ranks + 1) / 2);
    MPI_Win_free(&window);
    free(bytes);
}

/* --- the table --- */

static uint8_t *from, *to;
static MPI_Win shared;

/* Each moves a message `turns` times and answers how many bytes went one way. */
static double latency(int size, int turns)
{
    for (int turn = 0; turn < turns; turn++) {
        if (rank == 0)
            MPI_Send(from, size, MPI_BYTE, 1, 3, MPI_COMM_WORLD);
        if (rank < 2)
            MPI_Recv(to, size, MPI_BYTE, 1 - rank, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1)
            MPI_Send(from, size, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
    }
    return 2;
}

enum { WINDOW = 16 };

static void stream(int size, int turns, int both)
{
    MPI_Request requests[2 * WINDOW];
    for (int turn = 0; turn < turns && rank < 2; turn++) {
        int count = 0;
        for (int message = 0; message < WINDOW && (rank == 1 || both); message++)
            MPI_Irecv(to, size, MPI_BYTE, 1 - rank, 4, MPI_COMM_WORLD, &requests[count++]);
        for (int message = 0; message < WINDOW && (rank == 0 || both); message++)
            MPI_Isend(from, size, MPI_BYTE, 1 - rank, 4, MPI_COMM_WORLD, &requests[count++]);
        MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    }
    /* The last word is the receiver's. */
    if (rank == 1)
        MPI_Send(NULL, 0, MPI_BYTE, 0, 5, MPI_COMM_WORLD);
    if (rank == 0)
        MPI_Recv(NULL, 0, MPI_BYTE, 1, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static double one_way(int size, int turns)
{
    stream(size, turns, 0);
    return WINDOW;
}

static double both_ways(int size, int turns)
{
    stream(size, turns, 1);
    return 2 * WINDOW;
}

static double put(int size, int turns)
{
    for (int turn = 0; turn < turns && rank == 0; turn++) {
        MPI_Put(from, size, MPI_BYTE, 1, 0, size, MPI_BYTE, shared);
        MPI_Win_flush(1, shared);
    }
    return 1;
}

static double get(int size, int turns)
{
    for (int turn = 0; turn < turns && rank == 0; turn++) {
        MPI_Get(to, size, MPI_BYTE, 1, 0, size, MPI_BYTE, shared);
        MPI_Win_flush(1, shared);
    }
    return 1;
}

typedef double between_two(int size, int turns);

/* Microseconds of one, or with `rate` its MB/s. */
static double time_of(between_two *what, int size, int turns, int rate)
{
    what(size, 2);
    MPI_Barrier(MPI_COMM_WORLD);
    double started = MPI_Wtime(), messages = what(size, turns), took = MPI_Wtime() - started;
    MPI_Barrier(MPI_COMM_WORLD);
    return rate ? messages * size * turns / took / 1e6 : took / turns / messages * 1e6;
}

/* How often a message is moved. */
static int turns_of(int size)
{
    return size <= 16384 ? 200 : size <= 262144 ? 40 : 8;
}

static void two(void)
{
    from = room(LARGEST);
    to = room(LARGEST);
    for (int size = 1; size <= LARGEST; size *= 4) {
        int turns = turns_of(size);
        double times[2];
        fill(from, size, rank, size);
        memset(to, 0, size);
        times[0] = time_of(latency, size, turns, 0);
        check(rank > 1 || is_filled(to, size, 1 - rank, size));
        memset(to, 0, size);
        times[1] = time_of(one_way, size, turns / 4, 1);
        check(rank != 1 || is_filled(to, size, 0, size));
        if (rank == 0)
            printf("%9d %9.2f %9.1f\n", size, times[0], times[1]);
    }
    free(from);
    free(to);
}

static void bench(void)
{
    size_t most = (size_t)ranks * LARGEST;
    uint8_t *memory;
    from = room(most);
    to = room(most);
    MPI_Win_allocate(LARGEST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &shared);
    MPI_Win_lock_all(0, shared);
    if (rank == 0)
        printf("%9s %9s %9s %9s %9s %9s | %9s %9s %9s %9s %9s\n%9s %9s %9s %9s %9s %9s | %9s %9s %9s %9s %9s\n",
               "bytes", "latency", "one way", "both ways", "put", "get", "allreduce", "alltoall", "allgather",
               "bcast", "red.scat.", "", "us", "MB/s", "MB/s", "us", "us", "us", "us", "us", "us", "us");
    for (int size = 1; size <= LARGEST; size *= 4) {
        int turns = turns_of(size);
        fill(from, size, rank, size);
        memset(to, 0, size);
        if (rank == 1)
            fill(memory, size, 1, 9);
        MPI_Win_sync(shared);
        MPI_Barrier(MPI_COMM_WORLD);
        double times[] = {time_of(latency, size, turns, 0), time_of(one_way, size, turns / 4, 1),
                          time_of(both_ways, size, turns / 4, 1)};
        if (rank < 2)
            check(is_filled(to, size, 1 - rank, size));
        double got = time_of(get, size, turns, 0);
        if (rank == 0)
            check(is_filled(to, size, 1, 9));
        double given = time_of(put, size, turns, 0);
        MPI_Win_sync(shared);
        if (rank == 1)
            check(is_filled(memory, size, 0, size));
        if (rank == 0)
            printf("%9d %9.2f %9.1f %9.1f %9.2f %9.2f |", size, times[0], times[1], times[2], given, got);
        for (int which = 0; which < COLLECTIVES; which++) {
            collectives[which](from, to, size, 5, 1);
            MPI_Barrier(MPI_COMM_WORLD);
            double started = MPI_Wtime();
            for (int turn = 0; turn < turns / 4; turn++)
                collectives[which](from, to, size, 5, 0);
            double own = (MPI_Wtime() - started) / (turns / 4) * 1e6, all = 0;
            MPI_Reduce(&own, &all, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
            collectives[which](from, to, size, 6, 1);
            if (rank == 0)
                printf(" %9.2f", all);
        }
        if (rank == 0) {
            printf("\n");
            fflush(stdout);
        }
    }
    MPI_Win_unlock_all(shared);
    MPI_Win_free(&shared);
    free(from);
    free(to);
}

int main(int count, char **words)
{
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *what = count < 2 ? "" : words[1];
    if (ranks < 2 || (strcmp(what, "check") && strcmp(what, "bench") && strcmp(what, "two"))) {
        fprintf(stderr, "mpi check [MIB] | mpi bench | mpi two, with two ranks or more\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (!strcmp(what, "bench")) {
        bench();
    } else if (!strcmp(what, "two")) {
        two();
    } else {
        ring();
        storm();
        all_collectives();
        allreduce((size_t)(count > 2 ? atoi(words[2]) : 64) << 20);
        windows();
    }
    int64_t own[2] = {checked, wrong}, all[2];
    MPI_Allreduce(own, all, 2, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks, %lld checked, %lld wrong\n", ranks, (long long)all[0], (long long)all[1]);
    MPI_Finalize();
    return all[1] != 0;
}
