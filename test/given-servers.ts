/** The servers that the environment names. Outside of CI a test that needs one is skipped by name where there is none. */
const { TEST_DATABASE_URL = '', TEST_REDIS_URL = '', CI } = process.env

if (CI === 'true' && !(TEST_DATABASE_URL && TEST_REDIS_URL))
  throw new Error('CI must set TEST_DATABASE_URL and TEST_REDIS_URL')

/** Their addresses, as the gateway's environment has them; empty where there is none. */
export const SERVERS = { DATABASE_URL: TEST_DATABASE_URL, REDIS_URL: TEST_REDIS_URL }

/** Options of the tests that need them. */
export const ON_POSTGRES = { skip: TEST_DATABASE_URL ? false : 'TEST_DATABASE_URL names no PostgreSQL' }
export const ON_REDIS = { skip: TEST_REDIS_URL ? false : 'TEST_REDIS_URL names no Redis' }
export const ON_SERVERS = { skip: ON_POSTGRES.skip || ON_REDIS.skip }
