package neterr

import "syscall"

// errorPortUnreachable is ERROR_PORT_UNREACHABLE, of an overlapped receive.
const errorPortUnreachable syscall.Errno = 1234

// windowsNumber is a number that Windows returns, and what it means.
type windowsNumber struct{ means, number syscall.Errno }

// windowsNumbers returns the errors of Winsock (10000 and above), and of Win32
// that an overlapped call returns unchanged.
// https://learn.microsoft.com/windows/win32/winsock/windows-sockets-error-codes-2
func windowsNumbers() [34]windowsNumber {
	return [...]windowsNumber{
		{syscall.EINTR, 10004},
		{syscall.EBADF, 10009},
		{syscall.EBADF, 6}, // ERROR_INVALID_HANDLE
		{syscall.EACCES, 10013},
		{syscall.EACCES, 5}, // ERROR_ACCESS_DENIED
		{syscall.EINVAL, 10022},
		{syscall.EINVAL, 87}, // ERROR_INVALID_PARAMETER
		{syscall.EMFILE, 10024},
		{syscall.EMFILE, 4}, // ERROR_TOO_MANY_OPEN_FILES
		{syscall.EAGAIN, 10035},
		{syscall.EMSGSIZE, 10040},
		{syscall.EMSGSIZE, 234}, // ERROR_MORE_DATA
		{syscall.ENOPROTOOPT, 10042},
		{syscall.EPROTONOSUPPORT, 10043},
		{syscall.EOPNOTSUPP, 10045},
		{syscall.EAFNOSUPPORT, 10047},
		{syscall.EADDRINUSE, 10048},
		{syscall.EADDRNOTAVAIL, 10049},
		{syscall.ENETDOWN, 10050},
		{syscall.ENETUNREACH, 10051},
		{syscall.ENETUNREACH, 1231}, // ERROR_NETWORK_UNREACHABLE
		{syscall.ENETRESET, 10052},
		{syscall.ECONNABORTED, 10053},
		{syscall.ECONNABORTED, 1236}, // ERROR_CONNECTION_ABORTED
		{syscall.ECONNRESET, 10054},
		{syscall.ECONNRESET, 64}, // ERROR_NETNAME_DELETED
		{syscall.ENOBUFS, 10055},
		{syscall.EPIPE, 10058}, // WSAESHUTDOWN
		{syscall.EPIPE, 109},   // ERROR_BROKEN_PIPE
		{syscall.ETIMEDOUT, 10060},
		{syscall.ETIMEDOUT, 121}, // ERROR_SEM_TIMEOUT
		{syscall.ECONNREFUSED, 10061},
		{syscall.ECONNREFUSED, 1225}, // ERROR_CONNECTION_REFUSED
		{syscall.EHOSTUNREACH, 10065},
	}
}
