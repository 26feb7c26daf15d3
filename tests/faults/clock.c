/* Shifts the clock of a process, for LD_PRELOAD: what a jump of the machine's clock does to it.

   The file SHIFTED_CLOCK holds the shift in seconds as a 64-bit integer; it is mapped, so a test
   can change it while the process runs. CLOCK_MONOTONIC stays as it is, as in a real jump. Times of
   files are shifted too: the kernel writes them by the real clock. Waits until a time of day are
   passed to the kernel by the real clock. libfaketime is of no use here: its clock_nanosleep fails
   for Python's time.sleep. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift;
static const int64_t none = 0;

static int64_t seconds(void) {
    if (!shift) {
        const char *path = getenv("SHIFTED_CLOCK");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *mapped = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        shift = mapped == MAP_FAILED ? &none : mapped;
    }
    return *shift;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, id, now);
    if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += seconds();
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    int result = syscall(SYS_gettimeofday, now, zone);
    if (!result) now->tv_sec += seconds();
    return result;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}

/* A deadline of the monotonic clock is the time since the machine has started. */
static struct timespec real(const struct timespec *deadline) {
    struct timespec found = *deadline;
    if (found.tv_sec > 1000000000) found.tv_sec -= seconds();
    return found;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                           const struct timespec *deadline) {
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec until = real(deadline);
    if (!next) next = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    return next(condition, mutex, &until);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *deadline) {
    static int (*next)(sem_t *, const struct timespec *);
    struct timespec until = real(deadline);
    if (!next) next = dlsym(RTLD_NEXT, "sem_timedwait");
    return next(semaphore, &until);
}

static int shifted(int result, struct stat *found) {
    if (!result) {
        found->st_atime += seconds();
        found->st_mtime += seconds();
        found->st_ctime += seconds();
    }
    return result;
}

int fstatat(int folder, const char *path, struct stat *found, int flags) {
    return shifted(syscall(SYS_newfstatat, folder, path, found, flags), found);
}

int stat(const char *path, struct stat *found) { return fstatat(AT_FDCWD, path, found, 0); }

int lstat(const char *path, struct stat *found) {
    return fstatat(AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW);
}

int fstat(int file, struct stat *found) { return shifted(syscall(SYS_fstat, file, found), found); }

/* The names with large files; the structures are the same on this architecture. */
int fstatat64(int, const char *, struct stat64 *, int) __attribute__((alias("fstatat")));
int stat64(const char *, struct stat64 *) __attribute__((alias("stat")));
int lstat64(const char *, struct stat64 *) __attribute__((alias("lstat")));
int fstat64(int, struct stat64 *) __attribute__((alias("fstat")));
