/* Preloaded into a process: below one folder, calls that change it fail from the n-th on with an errno, or all wait.

   A call waits for a moment, as where a server comes back. What the call would do is in a set of letters, so that an error comes where a file system gives it:
   c creates a name, w writes bytes, s syncs, n renames, r removes, o opens what is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[4096], kinds[16];
static atomic_int error_number, first, seen, hit;
enum { HANG = -1 };

void faults_set(const char *path, const char *which, int number, int from) {
  strncpy(folder, path, sizeof folder - 1);
  strncpy(kinds, which, sizeof kinds - 1);
  first = from;
  seen = 0;
  hit = 0;
  error_number = number;
}
void faults_clear(void) { error_number = 0; }
int faults_hit(void) { return hit; }

static int is_below(const char *path) {
  size_t n = strlen(folder);
  return n && !strncmp(path, folder, n) && (path[n] == '/' || !path[n]);
}

/* 1: the call fails, errno is set. */
static int fails(char kind, const char *path) {
  if (!error_number || !strchr(kinds, kind) || !is_below(path) || atomic_fetch_add(&seen, 1) < first) return 0;
  atomic_fetch_add(&hit, 1);
  if (error_number == HANG) {
    usleep(1000);
    return 0;
  }
  errno = error_number;
  return 1;
}
static int fd_fails(char kind, int fd) {
  char link[64], path[4096];
  if (!error_number) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return fails(kind, path);
}
static int at_fails(char kind, int dir, const char *path) {
  char link[64], whole[8192];
  if (!error_number) return 0;
  if (path[0] == '/' || dir == AT_FDCWD) return fails(kind, path);
  snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
  ssize_t n = readlink(link, whole, 4095);
  if (n < 0) return 0;
  snprintf(whole + n, sizeof whole - n, "/%s", path);
  return fails(kind, whole);
}
static int open_fails(int dir, const char *path, int flags) {
  struct stat found;
  if (!error_number) return 0;
  if (flags & O_CREAT && fstatat(dir, path, &found, 0)) return at_fails('c', dir, path);
  return (flags & O_ACCMODE) != O_RDONLY ? at_fails('w', dir, path) : at_fails('o', dir, path);
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    REAL(name); va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    return open_fails(AT_FDCWD, path, flags) ? -1 : real(path, flags, mode); }
#define OPENAT(name) \
  int name(int dir, const char *path, int flags, ...) { \
    REAL(name); va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    return open_fails(dir, path, flags) ? -1 : real(dir, path, flags, mode); }
#define FOPEN(name) \
  FILE *name(const char *path, const char *mode) { \
    REAL(name); int flags = mode[0] == 'r' ? O_RDONLY : O_CREAT | O_WRONLY; \
    return open_fails(AT_FDCWD, path, flags) ? NULL : real(path, mode); }
#define CALL(type, name, fault, declared, given) type name declared { REAL(name); return fault ? -1 : real given; }

OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64) FOPEN(fopen) FOPEN(fopen64)
CALL(ssize_t, write, fd_fails('w', fd), (int fd, const void *p, size_t n), (fd, p, n))
CALL(ssize_t, writev, fd_fails('w', fd), (int fd, const struct iovec *p, int n), (fd, p, n))
CALL(ssize_t, pwrite, fd_fails('w', fd), (int fd, const void *p, size_t n, off_t o), (fd, p, n, o))
CALL(ssize_t, pwrite64, fd_fails('w', fd), (int fd, const void *p, size_t n, off64_t o), (fd, p, n, o))
CALL(ssize_t, sendfile, fd_fails('w', fd), (int fd, int in, off_t *o, size_t n), (fd, in, o, n))
CALL(ssize_t, sendfile64, fd_fails('w', fd), (int fd, int in, off64_t *o, size_t n), (fd, in, o, n))
CALL(ssize_t, copy_file_range, fd_fails('w', fd), (int in, off64_t *i, int fd, off64_t *o, size_t n, unsigned f), (in, i, fd, o, n, f))
CALL(int, fsync, fd_fails('s', fd), (int fd), (fd))
CALL(int, fdatasync, fd_fails('s', fd), (int fd), (fd))
CALL(int, rename, fails('n', to), (const char *from, const char *to), (from, to))
CALL(int, renameat, at_fails('n', b, to), (int a, const char *from, int b, const char *to), (a, from, b, to))
CALL(int, mkdir, fails('c', path), (const char *path, mode_t mode), (path, mode))
CALL(int, symlink, fails('c', path), (const char *to, const char *path), (to, path))
CALL(int, link, fails('c', path), (const char *to, const char *path), (to, path))
CALL(int, unlink, fails('r', path), (const char *path), (path))
CALL(int, unlinkat, at_fails('r', dir, path), (int dir, const char *path, int flags), (dir, path, flags))
CALL(int, rmdir, fails('r', path), (const char *path), (path))
