/* What the machine can do: gathers, and bare zstd, on threads that stay awake between calls.
 *
 * No checks, no checksums, no index: record i of a column lies at base + i * stride. A job is cut into PIECES runs of records;
 * the caller and the helpers claim them one by one, so that a thread that was held up does not hold up the others. A helper
 * without work spins for a while before it sleeps; if that is long enough, calls in a row never pay for waking it.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum { PIECES = 16, MAX_HELPERS = 15, AHEAD = 8 };

typedef struct {
  size_t stride;
  const char* from;
  char* to;
} Column;

typedef struct {
  void (*run)(const void* work, size_t low, size_t high, int thread);
  const void* work;
  size_t count;
} Job;

typedef struct Crew Crew;

typedef struct {
  Crew* crew;
  int number;
} Helper;

struct Crew {
  _Atomic uint64_t next;   /* number of the job << 32 | next piece of it */
  _Atomic size_t finished; /* pieces of this job that are done */
  _Atomic int sleeping;
  Job job;
  uint64_t number;
  int closing;
  int num_helpers;
  int spins;
  pthread_mutex_t mutex;
  pthread_cond_t awake;
  pthread_t threads[MAX_HELPERS];
  Helper helpers[MAX_HELPERS];
  ZSTD_DCtx* decoders[MAX_HELPERS + 1];
  ZSTD_CCtx* encoders[MAX_HELPERS + 1];
};

static void work_on(Crew* crew, uint64_t number, int thread) {
  uint64_t now = atomic_load(&crew->next);
  while (now >> 32 == number && (now & 0xFFFFFFFF) < PIECES) {
    if (!atomic_compare_exchange_weak(&crew->next, &now, now + 1)) continue;
    const size_t piece = now & 0xFFFFFFFF, count = crew->job.count; /* ours: the job cannot end before this piece does */
    crew->job.run(crew->job.work, count * piece / PIECES, count * (piece + 1) / PIECES, thread);
    atomic_fetch_add(&crew->finished, 1);
    now = atomic_load(&crew->next);
  }
}

static void pause_a_moment(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static void* serve(void* argument) {
  const Helper* self = argument;
  Crew* crew = self->crew;
  uint64_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < crew->spins && atomic_load(&crew->next) >> 32 == seen; ++spin) pause_a_moment();
    if (atomic_load(&crew->next) >> 32 == seen) {
      pthread_mutex_lock(&crew->mutex);
      atomic_fetch_add(&crew->sleeping, 1);
      while (atomic_load(&crew->next) >> 32 == seen) pthread_cond_wait(&crew->awake, &crew->mutex);
      atomic_fetch_sub(&crew->sleeping, 1);
      pthread_mutex_unlock(&crew->mutex);
    }
    seen = atomic_load(&crew->next) >> 32;
    if (crew->closing) return NULL;
    work_on(crew, seen, self->number + 1);
  }
}

static void run(Crew* crew, Job job) {
  crew->job = job;
  atomic_store(&crew->finished, 0);
  atomic_store(&crew->next, ++crew->number << 32);
  if (atomic_load(&crew->sleeping) > 0) {
    pthread_mutex_lock(&crew->mutex);
    pthread_cond_broadcast(&crew->awake);
    pthread_mutex_unlock(&crew->mutex);
  }
  if (job.run == NULL) return;
  work_on(crew, crew->number, 0);
  for (int spin = 0; atomic_load(&crew->finished) < PIECES; ++spin) {
    if (spin < 1000) {
      pause_a_moment();
    } else {
      sched_yield();
    }
  }
}

Crew* crew_start(int threads, int spins) {
  Crew* crew = calloc(1, sizeof(Crew));
  if (crew == NULL || threads < 1 || threads > MAX_HELPERS + 1) return NULL;
  crew->spins = spins;
  pthread_mutex_init(&crew->mutex, NULL);
  pthread_cond_init(&crew->awake, NULL);
  for (int i = 0; i < threads; ++i) {
    crew->decoders[i] = ZSTD_createDCtx();
    crew->encoders[i] = ZSTD_createCCtx();
  }
  for (int i = 0; i < threads - 1; ++i) {
    crew->helpers[i] = (Helper){crew, i};
    if (pthread_create(&crew->threads[i], NULL, serve, &crew->helpers[i]) != 0) return NULL;
    crew->num_helpers = i + 1;
  }
  return crew;
}

void crew_stop(Crew* crew) {
  crew->closing = 1;
  run(crew, (Job){0});
  for (int i = 0; i < crew->num_helpers; ++i) pthread_join(crew->threads[i], NULL);
  for (int i = 0; i <= crew->num_helpers; ++i) {
    ZSTD_freeDCtx(crew->decoders[i]);
    ZSTD_freeCCtx(crew->encoders[i]);
  }
  free(crew);
}

/* Gather: records of fixed size, all columns of a record together. */

typedef struct {
  const int64_t* ids;
  const Column* columns;
  size_t num_columns;
  size_t count;
} Gather;

static void gather_run(const void* work, size_t low, size_t high, int thread) {
  const Gather* g = work;
  (void)thread;
  for (size_t i = low; i < high; ++i) {
    for (size_t c = 0; c < g->num_columns; ++c) {
      const Column* column = &g->columns[c];
      memcpy(column->to + i * column->stride, column->from + (size_t)g->ids[i] * column->stride, column->stride);
    }
  }
}

static void gather_ahead_run(const void* work, size_t low, size_t high, int thread) {
  const Gather* g = work;
  (void)thread;
  for (size_t i = low; i < high; ++i) {
    for (size_t c = 0; c < g->num_columns; ++c) {
      const Column* column = &g->columns[c];
      if (i + AHEAD < high) {
        const char* soon = column->from + (size_t)g->ids[i + AHEAD] * column->stride;
        for (size_t at = 0; at < column->stride && at < 512; at += 64) __builtin_prefetch(soon + at);
        if (column->stride < 512) __builtin_prefetch(soon + column->stride - 1);
      }
      memcpy(column->to + i * column->stride, column->from + (size_t)g->ids[i] * column->stride, column->stride);
    }
  }
}

void crew_gather(Crew* crew, const int64_t* ids, size_t count, const Column* columns, size_t num_columns, int ahead) {
  const Gather gather = {ids, columns, num_columns, count};
  run(crew, (Job){ahead ? gather_ahead_run : gather_run, &gather, count});
}

/* Decode: one zstd frame per record; they go one after the other into to, and offsets says where. */

typedef struct {
  Crew* crew;
  const int64_t* ids;
  const char* frames;
  const uint64_t* frame_ends; /* per record, where its frame ends; the first begins at 0 */
  char* to;
  const int64_t* offsets;
  _Atomic int* failed;
} Decode;

static void decode_run(const void* work, size_t low, size_t high, int thread) {
  const Decode* d = work;
  for (size_t i = low; i < high; ++i) {
    const size_t id = (size_t)d->ids[i], room = (size_t)(d->offsets[i + 1] - d->offsets[i]);
    const uint64_t start = id == 0 ? 0 : d->frame_ends[id - 1];
    const size_t size = d->frame_ends[id] - start;
    if (ZSTD_decompressDCtx(d->crew->decoders[thread], d->to + d->offsets[i], room, d->frames + start, size) != room) *d->failed = 1;
  }
}

/* Returns 0, or 1 if a frame does not decode. offsets has room for count + 1 numbers. */
int crew_decode(Crew* crew, const int64_t* ids, size_t count, const char* frames, const uint64_t* frame_ends, const uint32_t* lengths,
                char* to, int64_t* offsets) {
  _Atomic int failed = 0;
  offsets[0] = 0;
  for (size_t i = 0; i < count; ++i) offsets[i + 1] = offsets[i] + lengths[ids[i]];
  const Decode decode = {crew, ids, frames, frame_ends, to, offsets, &failed};
  run(crew, (Job){decode_run, &decode, count});
  return failed;
}

/* Encode: a frame per record; frame i lies in its own slot, far enough from the next for the worst case. */

typedef struct {
  Crew* crew;
  int level;
  const char* values;
  const int64_t* offsets;
  char* to;
  uint64_t* sizes;
} Encode;

static size_t slot(const Encode* e, size_t i) { return (size_t)e->offsets[i] + ((size_t)e->offsets[i] >> 8) + 80 * i; }

static void encode_run(const void* work, size_t low, size_t high, int thread) {
  const Encode* e = work;
  for (size_t i = low; i < high; ++i) {
    const size_t size = (size_t)(e->offsets[i + 1] - e->offsets[i]);
    e->sizes[i] = ZSTD_compressCCtx(e->crew->encoders[thread], e->to + slot(e, i), slot(e, i + 1) - slot(e, i), e->values + e->offsets[i],
                                    size, e->level);
  }
}

/* Room that to must have. */
size_t crew_encode_room(const int64_t* offsets, size_t count) {
  const Encode e = {.offsets = offsets};
  return slot(&e, count);
}

void crew_encode(Crew* crew, int level, const char* values, const int64_t* offsets, size_t count, char* to, uint64_t* sizes) {
  const Encode encode = {crew, level, values, offsets, to, sizes};
  run(crew, (Job){encode_run, &encode, count});
}

/* Closes the gaps between the frames; returns the bytes of all, or 0 if one failed. Turns sizes into ends. */
size_t close_gaps(const int64_t* offsets, size_t count, char* to, uint64_t* sizes) {
  const Encode e = {.offsets = offsets};
  size_t end = 0;
  for (size_t i = 0; i < count; ++i) {
    if (ZSTD_isError(sizes[i])) return 0;
    memmove(to + end, to + slot(&e, i), sizes[i]);
    end += sizes[i];
    sizes[i] = end;
  }
  return end;
}
